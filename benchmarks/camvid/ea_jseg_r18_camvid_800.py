# The second head of EANet's authors, 256 slots and no norm, with the budget of the CamVid table
# (docs/camvid.md).
_base_ = ["./_base_/r18-d8.py", "./_base_/schedule_800.py"]
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    decode_head=dict(type="JSegEAHead", memory_size=256, norm_cfg=None),
)
