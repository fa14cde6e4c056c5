# FCN's head on LambdaResNet-50 of output stride 8, from random weights: what all members of the
# comparison of convolution, squeeze-excitation and lambda layers start from.
_base_ = "./fcn_r101-d8.py"
model = dict(
    backbone=dict(
        _delete_=True,
        type="LambdaResNet",
        depth=50,
        output_stride=8,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
    )
)
