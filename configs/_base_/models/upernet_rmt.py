# RMT with UPerNet and an FCN auxiliary head (qhfan/RMT, segmentation/configs/_base_/models/
# RMT_upper.py). The experiment sets the arch and its widths.
_base_ = "./upernet.py"
model = dict(
    # The published ImageNet weights, converted by `mmseg-ext convert rmt SRC DST`.
    backbone=dict(
        type="RMT",
        arch="small",
        out_indices=(0, 1, 2, 3),
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        init_cfg=dict(type="Pretrained", checkpoint="pretrained/rmt_small.pth"),
    ),
    decode_head=dict(in_channels=[64, 128, 256, 512]),
    auxiliary_head=dict(in_channels=256),
)
