# FCN in place of EANet, all else equal: for `make compare`.
_base_ = ["./ea_r18_shapes.py"]
crop_size = {{_base_.crop_size}}
norm_cfg = dict(type="BN", requires_grad=True)
model = dict(
    decode_head=dict(
        _delete_=True,
        type="FCNHead",
        in_channels=128,
        in_index=3,
        channels=128,
        num_convs=2,
        concat_input=False,
        dropout_ratio=0.1,
        num_classes=6,
        norm_cfg=norm_cfg,
        align_corners=True,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    )
)
auto_scale_lr = dict(enable=False, base_batch_size=8)
