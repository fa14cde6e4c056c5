# What every experiment with mmpretrain shares, as ../../_base_/default_runtime.py does for
# segmentation. mmpretrain needs torchvision.
default_scope = "mmpretrain"
custom_imports = dict(
    imports=["mmseg_ext", "mmseg_ext.backbones.logits_head"], allow_failed_imports=False
)
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0),
    dist_cfg=dict(backend="nccl"),  # without a GPU, the commands use gloo
)
vis_backends = [dict(type="LocalVisBackend")]
visualizer = dict(type="UniversalVisualizer", vis_backends=vis_backends, name="visualizer")

# Resumes exactly and writes checkpoints atomically: docs/reliability.md.
runner_type = "DurableRunner"
min_backbone_share = 0.9  # share of a backbone that loaded weights must fill

log_level = "INFO"
default_hooks = dict(
    timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=100),
    param_scheduler=dict(type="ParamSchedulerHook"),
    checkpoint=dict(type="DurableCheckpointHook", interval=1, max_keep_ckpts=1),
    sampler_seed=dict(type="DistSamplerSeedHook"),
    visualization=dict(type="VisualizationHook", enable=False),
    finite_loss=dict(type="FiniteLossHook"),
    stop_on_signal=dict(type="StopOnSignalHook"),
    run_record=dict(type="RunRecordHook"),
)

load_from = None
resume = False
