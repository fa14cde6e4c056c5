# RMT-small with Mask2Former on ADE20K by mmsegmentation's protocol for Swin. RMT's paper has no
# such result.
_base_ = [
    "./_base_/models/mask2former_rmt.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/default_runtime.py",
]
custom_imports = dict(
    imports=["mmseg_ext.detection.operators_in_pytorch", "mmseg_ext", "mmdet.models"],
    allow_failed_imports=False,
)
env_cfg = dict(cudnn_benchmark=False)  # cuDNN compiles depthwise convolutions to tune them
model = dict(data_preprocessor=dict(size=_base_.crop_size))
train_dataloader = dict(batch_size=2)  # per GPU, on 8 GPUs

queries = dict(lr_mult=1.0, decay_mult=0.0)
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05),
    paramwise_cfg=dict(
        custom_keys={
            "backbone": dict(lr_mult=0.1, decay_mult=1.0),
            "query_embed": queries,
            "query_feat": queries,
            "level_embed": queries,
        },
        norm_decay_mult=0.0,
    ),
    clip_grad=dict(max_norm=0.01, norm_type=2),
)
param_scheduler = [dict(type="PolyLR", eta_min=0, power=0.9, begin=0, end=160000, by_epoch=False)]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=160000, val_interval=8000)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
default_hooks = dict(checkpoint=dict(interval=8000))
auto_scale_lr = dict(enable=False, base_batch_size=16)
