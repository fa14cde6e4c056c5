# EANet on nuclei in microscopy images, from ImageNet weights: the weights that the package ships.
_base_ = "./_base_/protocols/lite0_fpn_nuclei.py"
model = dict(decode_head=dict(type="EAHead", ea_channels=64, memory_size=64))
