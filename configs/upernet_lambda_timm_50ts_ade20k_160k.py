# UPerNet on timm's lambda_resnet50ts, started from its ImageNet weights. Fetch
# lambda_resnet50ts_a1h_256-b87370f7.pth from
# https://github.com/rwightman/pytorch-image-models/releases/tag/v0.1-attn-weights and convert it
# with `mmseg-ext convert timm_lambda_resnet SRC pretrained/timm_lambda_resnet50ts.pth`.
_base_ = "./upernet_lambda_r101_ade20k_160k.py"
model = dict(
    backbone=dict(
        arch="timm_50ts",
        init_cfg=dict(type="Pretrained", checkpoint="pretrained/timm_lambda_resnet50ts.pth"),
    )
)
