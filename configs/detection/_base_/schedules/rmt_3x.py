# RMT's recipe for Mask and Cascade Mask R-CNN in 36 epochs (qhfan/RMT, detect/configs/RMT/
# maskrcnn_*_3x.py and casrcnn_*_3x.py). rmt_1x.py explains the learning rate; the published configs
# have 4e-4 (small) and 2e-4 (base).
_base_ = "./rmt_1x.py"
param_scheduler = [
    dict(type="LinearLR", start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1),
]
train_cfg = dict(max_epochs=36)
