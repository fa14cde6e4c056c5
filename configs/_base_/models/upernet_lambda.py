# UPerNet on LambdaResNet: four maps of strides 4 to 32. The experiment names the variant.
# `data_preprocessor.size` is the dataset's crop_size: the experiment sets it.
_base_ = "./upernet_eamlp.py"
model = dict(
    backbone=dict(
        _delete_=True,
        type="LambdaResNet",
        norm_cfg=dict(type="SyncBN", requires_grad=True),
    ),
    neck=None,
    decode_head=dict(in_channels=[256, 512, 1024, 2048]),
    auxiliary_head=dict(in_channels=1024),
)
