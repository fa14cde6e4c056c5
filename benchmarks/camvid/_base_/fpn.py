# Semantic FPN of 32 channels on four maps of strides 4 to 32, for all backbones of the CamVid
# table. The experiment adds the backbone and, if its maps need another one, the neck.
_base_ = "./r18-d8.py"
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
model = dict(
    backbone=dict(_delete_=True),
    neck=dict(type="FPN", out_channels=32, num_outs=4),
    decode_head=dict(
        type="FPNHead",
        in_channels=[32, 32, 32, 32],
        in_index=[0, 1, 2, 3],
        feature_strides=[4, 8, 16, 32],
        channels=32,
    ),
)
