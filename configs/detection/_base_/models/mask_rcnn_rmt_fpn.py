# Mask R-CNN with RMT and FPN (qhfan/RMT, detect/configs/_base_/models/RMT_rcnn.py). The experiment
# sets the arch, its widths and its weights.
_base_ = "./mask_rcnn_fpn.py"
model = dict(
    # The published ImageNet weights, converted by `mmseg-ext convert rmt SRC DST`.
    backbone=dict(
        type="RMT",
        arch="tiny",
        out_indices=(0, 1, 2, 3),
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        init_cfg=dict(type="Pretrained", checkpoint="pretrained/rmt_tiny.pth"),
    ),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
