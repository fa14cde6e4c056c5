# EANet on nuclei in microscopy images, from scratch: the weights that the package ships.
_base_ = "./_base_/protocols/r18_fpn_nuclei.py"
model = dict(decode_head=dict(type="EAHead", ea_channels=64, memory_size=64))
