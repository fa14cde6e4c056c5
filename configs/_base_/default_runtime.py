# Shared by every experiment: imports, environment, hooks, logging, test-time augmentation. Each
# experiment sets `default_hooks.checkpoint.interval`, usually to the schedule's `val_interval`.
# Schedules must not define `default_hooks`, because two bases with the same key do not merge.
default_scope = "mmseg"
custom_imports = dict(imports=["mmseg_ext"], allow_failed_imports=False)
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0),
    dist_cfg=dict(backend="nccl"),  # without a GPU, the commands use gloo
)
float32_matmul_precision = "high"  # TF32 on a GPU, as for convolutions; "highest" is float32

vis_backends = [dict(type="LocalVisBackend")]  # docs/tools.md adds TensorBoard
visualizer = dict(type="SegLocalVisualizer", vis_backends=vis_backends, name="visualizer")

# Resumes exactly and writes checkpoints atomically: docs/reliability.md.
runner_type = "DurableRunner"
min_backbone_share = 0.9  # share of a backbone that loaded weights must fill

log_processor = dict(by_epoch=False)
log_level = "INFO"
default_hooks = dict(
    timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=50, log_metric_by_epoch=False),  # with the ETA
    param_scheduler=dict(type="ParamSchedulerHook"),
    checkpoint=dict(
        type="DurableCheckpointHook",
        by_epoch=False,
        interval=4000,
        max_keep_ckpts=3,
        save_best="mIoU",
    ),
    sampler_seed=dict(type="DistSamplerSeedHook"),
    visualization=dict(type="SegVisualizationHook"),
    finite_loss=dict(type="FiniteLossHook"),
    stop_on_signal=dict(type="StopOnSignalHook"),
    run_record=dict(type="RunRecordHook"),
    run_results=dict(type="RunResultsHook"),  # shown by `mmseg-ext report`
)

load_from = None
resume = False

tta_model = dict(type="StreamingSegTTAModel")
