# Manhattan attention, decomposed on ImageNet features: docs/camvid.md.
_base_ = "./_base_/efficientnet-d8.py"
model = dict(decode_head=dict(type="MaSAHead", num_heads=4, decomposed=True))
