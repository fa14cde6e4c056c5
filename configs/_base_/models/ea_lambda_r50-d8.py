# EANet's head on LambdaResNet-50 of output stride 8. `position_bias` is there for public weights:
# those of d-li14/lambda.pytorch, converted by tools/model_converters/lambda_resnet2mmseg.py, are
# used with --cfg-options model.backbone.init_cfg.type=Pretrained
# model.backbone.init_cfg.checkpoint=FILE.
_base_ = "./ea_r101-d8.py"
model = dict(
    backbone=dict(
        _delete_=True,
        type="LambdaResNet",
        depth=50,
        output_stride=8,
        position_bias=True,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
    )
)
