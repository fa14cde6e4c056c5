# FCN with the budget of the CamVid table (docs/camvid.md), as mmsegmentation configures it.
_base_ = ["./_base_/r18-d8.py", "./_base_/schedule_800.py"]
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    decode_head=dict(type="FCNHead", num_convs=2, concat_input=True),
)
