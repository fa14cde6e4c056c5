# EANet (arXiv 2105.02358) on PASCAL VOC trainaug, as published: MenghaoGuo/EANet, model_torch.py,
# train_torch.py, settings.py; the data pipeline is XiaLiPKU/EMANet's.
_base_ = "./_base_/protocols/r101_voc_45k.py"
model = dict(
    decode_head=dict(
        type="EAHead",
        in_channels=2048,
        in_index=3,
        ea_channels=512,
        memory_size=64,
        channels=256,
        dropout_ratio=0.1,
        num_classes=21,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        align_corners=True,
        # The mean over all pixels, ignored and padded ones included: mmseg's default.
        loss_decode=dict(
            type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0, avg_non_ignore=False
        ),
    )
)
