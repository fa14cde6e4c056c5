"""The tables of docs/deepvit.md and docs/benchmarks/deepvit.md.

`blocks` times re-attention in blocks of queries against the plain order of operations. `tokens`
asks what becomes of normalised attention maps at a number of tokens that they were not trained on.

A softmax map of N tokens has the mean 1/N, so batch norm statistics learned on small images are
wrong on large ones. The check: a small DeepViT learns, on 64x64 images (17 tokens), which patches
are brighter than the image's mean, a question that only attention to the other patches answers.
Then it is asked about the same kind of scene at larger sizes, each patch 2x2 or 4x4 patches:

- with the statistics as they were learned;
- with the statistics rescaled to the number of tokens (`DeepViT(rescale_norm=True)`, the default);
- with the statistics estimated anew on images of the larger size, without labels.
"""

import copy
import sys
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from benchmarks.reference.re_attention import PlainReAttention
from benchmarks.tables import Settings, command, contest_table
from mmseg_ext.backbones.deepvit import PATCH, DeepViT
from mmseg_ext.cost.contest import contest, inference_step, training_step
from mmseg_ext.layers import ReAttention

CELLS = 4  # cells of one grey level along a side
_ARCH = {"embed_dims": 48, "depth": 4, "num_heads": 4, "mlp_ratio": 2}


def plain_twin(model: nn.Module) -> nn.Module:
    """A copy of `model` with every re-attention evaluated step by step."""
    if isinstance(model, ReAttention):
        return PlainReAttention(copy.deepcopy(model))
    twin = copy.deepcopy(model)
    for block in twin.blocks:
        if isinstance(block.attn, ReAttention):
            block.attn = PlainReAttention(block.attn)
    return twin


def blocks(settings: Settings):
    """The layer at several numbers of tokens, and whole backbones."""
    layer = ReAttention(384, 12)
    backbone = DeepViT(arch="16b", rescale_norm=False)
    cases = [
        ("layer, batch 1, 197 tokens", layer, (1, 197, 384), inference_step),
        ("layer, batch 1, 1025 tokens", layer, (1, 1025, 384), inference_step),
        ("layer, batch 1, 4097 tokens", layer, (1, 4097, 384), inference_step),
        ("layer, training, batch 2, 1025 tokens", layer, (2, 1025, 384), training_step),
        ("DeepViT-16b, 224x224", backbone, (1, 3, 224, 224), inference_step),
        ("DeepViT-16b, 512x512", backbone, (1, 3, 512, 512), inference_step),
    ]
    results = {}
    for case, model, shape, step in cases:
        x = torch.randn(shape, device=settings.device)
        ways = {"blocks": model, "plain": plain_twin(model)}
        steps = {name: step(module.to(settings.device), x) for name, module in ways.items()}
        results[case] = contest(steps, settings.rounds, settings.device)
    return contest_table(results)


def scenes(count: int, factor: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images (B, 3, H, H) and labels (B, h, h) per patch, `factor` patches along a cell's side.

    Every cell has its grey level, around a level of the image's own; label 1 is above their mean.
    """
    level = 2 * torch.randn(count, 1, 1, 1, generator=generator)
    cells = level + torch.randn(count, 1, CELLS, CELLS, generator=generator)
    label = (cells > cells.mean((2, 3), keepdim=True))[:, 0].long()  # (B, 4, 4)
    side = CELLS * factor * PATCH
    image = F.interpolate(cells, size=side).expand(-1, 3, -1, -1)
    image = image + 0.3 * torch.randn(count, 3, side, side, generator=generator)
    return image, label.repeat_interleave(factor, 1).repeat_interleave(factor, 2)


def _model(arch: dict, **arguments) -> nn.Sequential:
    backbone = DeepViT(arch=arch, img_size=CELLS * PATCH, out_indices=-1, **arguments)
    return nn.Sequential(backbone, _Classify(backbone.embed_dims))


class _Classify(nn.Conv2d):
    """Two logits per patch from the backbone's single map."""

    def __init__(self, channels: int):
        super().__init__(channels, 2, 1)

    def forward(self, maps: tuple[Tensor]) -> Tensor:
        return super().forward(maps[0])


def train(
    iterations: int, seed: int = 0, arch: dict | None = None, re_attention: bool = True
) -> nn.Sequential:
    """A DeepViT and its classifier of patches, trained on 64x64 scenes."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = _model(arch or _ARCH, re_attention=re_attention).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, iterations)
    for _ in range(iterations):
        images, labels = scenes(32, 1, generator)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def mean_iou(model: nn.Module, factor: int, count: int = 64) -> float:
    """Mean IoU of the two classes on unseen scenes."""
    generator = torch.Generator().manual_seed(10_000)
    hits, unions = torch.zeros(2), torch.zeros(2)
    for _ in range(0, count, 8):
        images, labels = scenes(8, factor, generator)
        predicted = model(images).argmax(1)
        for label in range(2):
            a, b = predicted == label, labels == label
            hits[label] += (a & b).sum()
            unions[label] += (a | b).sum()
    return float((hits / unions).mean())


def compare_statistics(iterations: int, factors: Sequence[int] = (1, 2, 4)) -> list[dict]:
    """A row per size: tokens, and the mean IoU with each treatment of the statistics."""
    trained = train(iterations)
    rows = []
    for factor in factors:
        row = {
            "size": CELLS * PATCH * factor,
            "tokens": (CELLS * factor) ** 2 + 1,
            "rescaled": mean_iou(trained, factor),
        }
        plain = _model(_ARCH, rescale_norm=False)
        plain.load_state_dict(trained.state_dict())
        row["as learned"] = mean_iou(plain.eval(), factor)
        generator = torch.Generator().manual_seed(20_000)
        update_bn((scenes(8, factor, generator)[0] for _ in range(16)), plain)
        row["estimated anew"] = mean_iou(plain.eval(), factor)
        rows.append(row)
    return rows


def tokens(settings: Settings):
    """mIoU at image sizes that a small DeepViT was not trained on."""
    columns = ("as learned", "rescaled", "estimated anew")
    rows = [
        [f"{row['size']}x{row['size']}", str(row["tokens"]), *(f"{row[c]:.3f}" for c in columns)]
        for row in compare_statistics(400)
    ]
    return ["size", "tokens", *columns], rows


PARTS = {"blocks": blocks, "tokens": tokens}

if __name__ == "__main__":
    sys.exit(command("Re-attention: blocks of queries; statistics at other image sizes.", PARTS))
