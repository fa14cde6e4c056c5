# MaSAHead, decomposed, with the budget of the CamVid table (docs/camvid.md).
_base_ = ["./_base_/r18-d8.py", "./_base_/schedule_800.py"]
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    decode_head=dict(type="MaSAHead", num_heads=4, decomposed=True),
)
