# UPerNet on timm's lambda_resnet26t, started from its ImageNet weights. Fetch
# lambda_resnet26t_c_256-e5a5c857.pth from
# https://github.com/rwightman/pytorch-image-models/releases/tag/v0.1-attn-weights and convert it
# with `mmseg-ext convert timm_lambda_resnet SRC pretrained/timm_lambda_resnet26t.pth`.
_base_ = "./upernet_lambda_r101_ade20k_160k.py"
model = dict(
    backbone=dict(
        arch="timm_26t",
        init_cfg=dict(type="Pretrained", checkpoint="pretrained/timm_lambda_resnet26t.pth"),
    )
)
