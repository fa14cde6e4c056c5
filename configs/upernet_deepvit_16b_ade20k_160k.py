# DeepViT-16B with UPerNet on ADE20K; mmsegmentation's recipe for transformer backbones (AdamW).
# The paper has no segmentation results: the protocol is ours.
_base_ = [
    "./_base_/models/upernet_deepvit.py",
    "./_base_/datasets/ade20k.py",
    "./_base_/schedules/schedule_160k.py",
    "./_base_/default_runtime.py",
]
crop_size = _base_.crop_size
model = dict(
    data_preprocessor=dict(size=crop_size),
    decode_head=dict(num_classes=150),
    auxiliary_head=dict(num_classes=150),
)
optim_wrapper = dict(
    _delete_=True,
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys={
            "cls_token": dict(decay_mult=0.0),
            "pos_embed": dict(decay_mult=0.0),
        },
    ),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type="PolyLR", power=1.0, eta_min=0.0, begin=1500, end=160000, by_epoch=False),
]
train_dataloader = dict(batch_size=2)  # per GPU, on 8 GPUs
default_hooks = dict(checkpoint=dict(interval=16000))
auto_scale_lr = dict(enable=False, base_batch_size=16)
