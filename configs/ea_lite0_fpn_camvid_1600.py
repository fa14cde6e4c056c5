# EANet on CamVid, from ImageNet weights: the weights in `weights` of a clone (docs/camvid.md).
_base_ = "./_base_/protocols/lite0_fpn_camvid.py"
model = dict(decode_head=dict(type="EAHead", ea_channels=64, memory_size=64))
