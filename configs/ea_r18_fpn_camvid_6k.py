# EANet on CamVid, from scratch: the weights that the package ships (docs/camvid.md).
_base_ = "./_base_/protocols/r18_fpn_camvid_6k.py"
model = dict(decode_head=dict(type="EAHead", ea_channels=64, memory_size=64))
