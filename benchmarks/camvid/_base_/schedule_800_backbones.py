# The protocol of the CamVid table with the learning rate of its backbones (docs/camvid.md).
_base_ = "./schedule_800.py"
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
