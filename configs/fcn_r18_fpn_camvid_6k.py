# The same network as ea_r18_fpn_camvid_6k.py with external attention left out.
_base_ = "./_base_/protocols/r18_fpn_camvid_6k.py"
model = dict(decode_head=dict(type="FCNHead", num_convs=2, concat_input=False))
