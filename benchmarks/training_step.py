"""Training steps to measure and to count: of a config on its crops, and of small segmentors."""

from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import DefaultScope
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmseg_ext import register_all_modules
from mmseg_ext.engine.build import build_segmentor
from mmseg_ext.engine.config import crop_size, input_channels, load_config

META = torch.device("meta")
_COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}


class WithoutData(TorchDispatchMode):
    """Context in which a model on the meta device, whose tensors have no data, can train.

    The meta device stands for a GPU: every number that is read from it is 1, and operators raise
    where one tensor is there and another on the CPU. A GPU takes numbers from the CPU, and copies.
    """

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if any(x.is_meta for x in tensors):
            if operator is torch.ops.aten._local_scalar_dense.default:
                return torch.ones((), dtype=args[0].dtype).item()
            foreign = [x for x in tensors if not x.is_meta and x.dim() > 0]
            if foreign and operator not in _COPIES:
                shape = tuple(foreign[0].shape)
                raise RuntimeError(f"{operator}: a tensor {shape} is on the CPU, another is not")
        return operator(*args, **(kwargs or {}))


def build_training_model(config: Config, device: torch.device) -> BaseModel:
    """Build a config's segmentor on a device, in training mode."""
    with device:
        model = build_segmentor(config)
    model.data_preprocessor.to(device)  # it moves batches there
    return model.train()


def batch_of(config: Config, device: torch.device) -> dict[str, Any]:
    """Return a batch of black crops, as the config's dataloader gives them to the model."""
    images, samples = [], []
    height, width = crop_size(config)
    channels = input_channels(config.model)
    meta = {"img_shape": (height, width), "ori_shape": (height, width)}
    for _ in range(config.train_dataloader.batch_size):
        image = torch.zeros(channels, height, width, dtype=torch.uint8, device=device)
        images.append(image)
        label = torch.zeros(1, height, width, dtype=torch.long, device=device)
        samples.append(SegDataSample(metainfo=meta, gt_sem_seg=PixelData(data=label)))
    return {"inputs": images, "data_samples": samples}


def random_batch(config: Config) -> dict[str, Any]:
    """Return random images and labels on the CPU, as of the config's data loader."""
    batch = batch_of(config, torch.device("cpu"))
    for image, sample in zip(batch["inputs"], batch["data_samples"], strict=True):
        image.random_(256)
        sample.gt_sem_seg.data.random_(config.model.decode_head.num_classes)
    return batch


def training_loss(model: Any, batch: dict) -> Tensor:
    """Return the loss of a `BaseModel` that mmengine's `train_step` minimizes."""
    data = model.data_preprocessor(batch, training=True)
    return model.parse_losses(model(**data, mode="loss"))[0]


def build_wrapper(
    model: BaseModel, config: Config, half: bool = False, fused: bool = False
) -> OptimWrapper:
    """Build the config's optimizer, in mixed precision with bfloat16 if `half`."""
    settings = config.optim_wrapper.to_dict()
    settings = {key: settings[key] for key in settings if key not in ("dtype", "loss_scale")}
    if half:
        settings |= dict(type="PortableAmpOptimWrapper", dtype="bfloat16")
    else:
        settings["type"] = "OptimWrapper"
    if fused:
        settings["optimizer"] = {**settings["optimizer"], "fused": True}
    return build_optim_wrapper(model, ConfigDict(settings))


def training_config(name: str, stock: bool, quick: bool) -> Config:
    """Load a config, with mmsegmentation's segmentor if `stock`; tiny if `quick`."""
    config = load_config(name)
    settings: dict = config.model.to_dict()
    if quick:
        settings["backbone"] |= dict(num_stages=1, strides=(1,), dilations=(1,), out_indices=(0,))
        settings["decode_head"] |= dict(in_channels=16, in_index=0)
    if stock:
        settings["type"] = "EncoderDecoder"
    config.model = settings
    return config


def set_precision(precision: str) -> None:
    """Set torch's precision of float32 products: 'float32' is exact, others allow TF32."""
    exact = precision == "float32"
    torch.set_float32_matmul_precision("highest" if exact else "high")
    torch.backends.cudnn.allow_tf32 = not exact


SIZE = 64
# A scaled sum, since mmsegmentation 1.2.2 has no mean with class weights and ignored pixels.
_LOSS = dict(type="CrossEntropyLoss", reduction="sum", loss_weight=1 / (2 * SIZE**2))
_LOSS |= dict(class_weight=[1.0, 2.0, 0.5, 1.5])
_HEAD = dict(channels=16, norm_cfg=dict(type="BN"), dropout_ratio=0.0, loss_decode=_LOSS)
_HEAD |= dict(num_classes=4)
_RESNET = dict(type="ResNetV1c", depth=18, num_stages=1, base_channels=16, stem_channels=16)
_RESNET |= dict(out_indices=(0,), strides=(1,), dilations=(1,), norm_cfg=dict(type="BN"))
_FCN = dict(type="FCNHead")
_VIT = dict(embed_dims=396, depth=2, num_heads=12, re_attention_blocks=1)
# Backbone, its last width, and head: each of ours once, next to parts of mmsegmentation.
SEGMENTORS: dict[str, tuple[dict, int, dict]] = {
    "EAHead": (_RESNET, 16, dict(type="EAHead", ea_channels=32)),
    "JSegEAHead": (_RESNET, 16, dict(type="JSegEAHead")),
    "DANetEAHead": (_RESNET, 16, dict(type="DANetEAHead")),
    "MaSAHead": (_RESNET, 16, dict(type="MaSAHead", num_heads=4)),
    "RMT": (dict(type="RMT", arch="tiny", out_indices=3, drop_path_rate=0.0), 512, _FCN),
    "LambdaResNet": (dict(type="LambdaResNet", depth=(1, 1, 1, 1)), 2048, _FCN),
    "DeepViT": (dict(type="DeepViT", arch=_VIT, img_size=32), 396, _FCN),
    "EAMLP": (dict(type="EAMLP", arch="7", img_size=32), 256, _FCN),
}


def small_segmentor(name: str, device: torch.device) -> tuple[Any, Tensor, list[SegDataSample]]:
    """Return one of `SEGMENTORS` with images and samples, of which every fifth pixel is ignored."""
    register_all_modules(init_default_scope=False)
    torch.manual_seed(0)
    backbone, width, head = SEGMENTORS[name]
    head = dict(**_HEAD, in_channels=width, in_index=-1, **head)
    settings = dict(backbone=backbone, decode_head=head, test_cfg=dict(mode="whole"))
    with DefaultScope.overwrite_default_scope("mmseg"):
        model = MODELS.build(ConfigDict(type="StripEncoderDecoder", **settings))
    images = torch.randn(2, 3, SIZE, SIZE).to(device)
    sizes = dict(img_shape=(SIZE, SIZE), ori_shape=(SIZE, SIZE), pad_shape=(SIZE, SIZE))
    samples = [SegDataSample(metainfo=sizes) for _ in images]
    for sample in samples:
        labels = torch.randint(5, (1, SIZE, SIZE))
        sample.gt_sem_seg = PixelData(data=labels.masked_fill(labels == 4, 255).to(device))
    return model.to(device).train(), images, samples


def deterministic_step(name: str, device: torch.device) -> tuple[float, list[Tensor]]:
    """Return the loss and the gradients of a step of one of `SEGMENTORS`.

    Raises:
        RuntimeError: from an operation that is not deterministic.
    """
    model, images, samples = small_segmentor(name, device)
    torch.use_deterministic_algorithms(True)
    try:
        loss = model.parse_losses(model(images, samples, mode="loss"))[0]
        loss.backward()
    finally:
        torch.use_deterministic_algorithms(False)
    return loss.item(), [parameter.grad for parameter in model.parameters()]
