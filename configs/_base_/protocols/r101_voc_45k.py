# EANet's published protocol on PASCAL VOC trainaug, without the head (MenghaoGuo/EANet,
# model_torch.py, train_torch.py, settings.py; the data pipeline is XiaLiPKU/EMANet's).
_base_ = [
    "../models/r101-d8.py",
    "../datasets/voc_published.py",
    "../schedules/published_voc_45k.py",
    "../default_runtime.py",
]
crop_size = _base_.crop_size
model = dict(
    data_preprocessor=dict(size=crop_size),
    # Deep stem of 128 channels, and dilations (2, 8, 16) in the last stage: mmseg's multi_grid
    # holds the dilations themselves. The weights are resnet101-2a57e44d.pth, converted by
    # `mmseg-ext convert resnet_deep_stem SRC DST`.
    backbone=dict(
        stem_channels=128,
        multi_grid=(2, 8, 16),
        contract_dilation=True,
        init_cfg=dict(type="Pretrained", checkpoint="pretrained/resnet101_deep_stem-2a57e44d.pth"),
    ),
    auxiliary_head=None,
)
# Published: a checkpoint every 3,000 iterations.
default_hooks = dict(checkpoint=dict(interval=3000))
randomness = dict(seed=66)
tta_model = dict(merge="logits")  # test_torch.py adds raw logits
auto_scale_lr = dict(enable=False, base_batch_size=16)
