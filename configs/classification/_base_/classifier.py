# A backbone with its published classifier, which returns logits. The experiment sets the backbone.
model = dict(
    type="ImageClassifier",
    data_preprocessor=dict(
        num_classes=1000,
        mean=[123.675, 116.28, 103.53],  # R, G, B of ImageNet
        std=[58.395, 57.12, 57.375],
        to_rgb=True,
    ),
    backbone=dict(num_classes=1000),
    head=dict(
        type="LogitsHead",
        loss=dict(type="LabelSmoothLoss", label_smooth_val=0.1, mode="original"),
        topk=(1, 5),
    ),
    train_cfg=dict(augments=[dict(type="Mixup", alpha=0.8), dict(type="CutMix", alpha=1.0)]),
)
