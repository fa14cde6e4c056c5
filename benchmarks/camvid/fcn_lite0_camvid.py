# FCN on ImageNet features: docs/camvid.md.
_base_ = "./_base_/efficientnet-d8.py"
model = dict(decode_head=dict(type="FCNHead", num_convs=2, concat_input=True))
