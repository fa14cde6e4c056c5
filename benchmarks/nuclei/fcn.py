# mmsegmentation's FCN head with the backbone, the pyramid and the protocol of ours.
_base_ = "../../configs/_base_/protocols/r18_fpn_nuclei.py"
model = dict(decode_head=dict(type="FCNHead", num_convs=2, concat_input=False))
