# What every experiment with mmdetection shares, as ../../_base_/default_runtime.py does for
# segmentation. `operators_in_pytorch` replaces mmcv's compiled operators if they are missing.
default_scope = "mmdet"
custom_imports = dict(
    imports=[
        "mmseg_ext.detection.operators_in_pytorch",
        "mmseg_ext",
        "mmseg_ext.detection.checked_coco",
    ],
    allow_failed_imports=False,
)
env_cfg = dict(
    cudnn_benchmark=False,  # images of many sizes
    mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0),
    dist_cfg=dict(backend="nccl"),  # without a GPU, the commands use gloo
)
vis_backends = [dict(type="LocalVisBackend")]
visualizer = dict(type="DetLocalVisualizer", vis_backends=vis_backends, name="visualizer")

# Resumes exactly and writes checkpoints whole or not at all: docs/reliability.md.
runner_type = "DurableRunner"
min_backbone_share = 0.9  # the part of a backbone that loaded weights must fill

log_processor = dict(type="LogProcessor", window_size=50, by_epoch=True)
log_level = "INFO"
default_hooks = dict(
    timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=50),
    param_scheduler=dict(type="ParamSchedulerHook"),
    checkpoint=dict(type="DurableCheckpointHook", interval=1, max_keep_ckpts=1),
    sampler_seed=dict(type="DistSamplerSeedHook"),
    visualization=dict(type="DetVisualizationHook"),
    finite_loss=dict(type="FiniteLossHook"),
    stop_on_signal=dict(type="StopOnSignalHook"),
    run_record=dict(type="RunRecordHook"),
)
custom_hooks = [dict(type="NumClassCheckHook")]

load_from = None
resume = False
