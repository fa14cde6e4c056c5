# EANet (arXiv 2105.02358) with the budget of the CamVid table (docs/camvid.md). Twice as wide
# before its second convolution as after it, as published.
_base_ = ["./_base_/r18-d8.py", "./_base_/schedule_800.py"]
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    decode_head=dict(type="EAHead", ea_channels=128, memory_size=64),
)
