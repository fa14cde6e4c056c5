# Mask R-CNN with a small RMT on the embedded scenes, from scratch on two CPU cores: what
# `make demo-det` trains. The head's widths, proposals and samples are a fraction of COCO's.
_base_ = [
    "./_base_/models/mask_rcnn_rmt_fpn.py",
    "./_base_/datasets/shapes_coco.py",
    "./_base_/default_runtime.py",
]
norm_cfg = dict(type="BN", requires_grad=True)
model = dict(
    backbone=dict(
        _delete_=True,
        type="RMT",
        arch=dict(
            depths=(1, 1, 2, 1),
            embed_dims=(32, 64, 96, 128),
            num_heads=(2, 2, 3, 4),
            ffn_ratios=(2, 2, 2, 2),
            decay_ranges=(4, 4, 6, 6),
            decomposed=(True, True, False, False),
            layer_scales=(None, None, None, None),
            drop_path_rate=0.0,
        ),
        norm_cfg=norm_cfg,
    ),
    neck=dict(in_channels=[32, 64, 96, 128], out_channels=48, norm_cfg=norm_cfg),
    rpn_head=dict(in_channels=48, feat_channels=48),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=48),
        bbox_head=dict(in_channels=48, fc_out_channels=128, num_classes=5),
        mask_roi_extractor=dict(out_channels=48),
        mask_head=dict(num_convs=1, in_channels=48, conv_out_channels=48, num_classes=5),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=40)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=100), rcnn=dict(max_per_img=20)),
)

optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=2e-3, betas=(0.9, 0.99), weight_decay=0.05),
    paramwise_cfg=dict(custom_keys={"norm": dict(decay_mult=0.0)}),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=False, begin=0, end=60),
    dict(type="CosineAnnealingLR", eta_min=0.0, by_epoch=False, begin=60, end=500),
]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=500, val_interval=250)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
log_processor = dict(by_epoch=False)
default_hooks = dict(
    logger=dict(interval=20, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=250),
)
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=8)
