"""Print the table of docs/deepvit.md: re-attention in blocks of queries and step by step.

`python -m benchmarks.deepvit pictures` draws the similarity of attention maps in docs/images.
"""

import copy
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from benchmarks.reference.re_attention import PlainReAttention
from benchmarks.tables import Case, command, timed
from mmseg_ext.backbones.deepvit import DeepViT
from mmseg_ext.inspection import attention_similarity
from mmseg_ext.layers import ReAttention


def plain_twin(model: nn.Module) -> nn.Module:
    """Return a copy of `model` that computes every re-attention step by step."""
    twin = copy.deepcopy(model)
    if isinstance(twin, ReAttention):
        return PlainReAttention(twin)
    for block in twin.blocks:
        if isinstance(block.attn, ReAttention):
            block.attn = PlainReAttention(block.attn, block.attn.map_scale != 1.0)
    return twin


def blocks() -> Iterator[Case]:
    """Compare the layer at several numbers of tokens, and full backbones."""
    layer = ReAttention(384, 12)
    backbone = DeepViT(arch="16b", rescale_norm=False)
    cases = [
        ("layer, batch 1, 197 tokens", layer, (1, 197, 384), "inference"),
        ("layer, batch 1, 1025 tokens", layer, (1, 1025, 384), "inference"),
        ("layer, batch 1, 4097 tokens", layer, (1, 4097, 384), "inference"),
        ("layer, batch 2, 1025 tokens", layer, (2, 1025, 384), "training"),
        ("DeepViT-16b, 224x224", backbone, (1, 3, 224, 224), "inference"),
        ("DeepViT-16b, 512x512", backbone, (1, 3, 512, 512), "inference"),
    ]
    for name, model, shape, mode in cases:
        ways = {"blocks": model, "plain": plain_twin(model)}
        yield Case(name, ways, torch.randn(shape), [mode])


def scenes(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return noisy images of 4 x 4 gray patches, and which are brighter than the image's mean.

    Only attention to the other patches tells, because each image has its own mean.
    """
    patches = 2 * torch.randn(count, 1, 1, 1, generator=generator)
    patches = patches + torch.randn(count, 1, 4, 4, generator=generator)
    brighter = (patches > patches.mean((2, 3), keepdim=True))[:, 0].long()  # (B, 4, 4)
    images = F.interpolate(patches, size=64).expand(-1, 3, -1, -1)  # (B, 3, 64, 64)
    return images + 0.3 * torch.randn(images.shape, generator=generator), brighter


def pictures() -> None:
    """Train 16 blocks with plain attention and with re-attention, and draw their similarity."""
    arch = {"embed_dims": 48, "depth": 16, "num_heads": 4, "mlp_ratio": 2}
    for re_attention, name in ((False, "plain"), (True, "re_attention")):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        backbone = DeepViT(arch, img_size=64, out_indices=-1, re_attention=re_attention)
        classify = nn.Conv2d(48, 2, 1)
        parameters = [*backbone.parameters(), *classify.parameters()]
        optimizer = torch.optim.AdamW(parameters, 2e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, 400)
        for _ in range(400):
            images, labels = scenes(32, generator)
            loss = F.cross_entropy(classify(backbone(images)[0]), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        images, labels = scenes(512, torch.Generator().manual_seed(1))
        with torch.no_grad():
            correct = classify(backbone.eval()(images)[0]).argmax(1) == labels
        (group,) = attention_similarity(backbone, images[:32])
        heads = group.between_heads[:, ~torch.eye(4, dtype=torch.bool)].mean(1)
        print(f"{name}: accuracy {correct.float().mean():.3f}, cosine of heads {heads.mean():.3f}")
        draw(group.between_layers.mean(-1), heads, Path(f"docs/images/deepvit_{name}.png"))


def draw(layers: Tensor, heads: Tensor, path: Path) -> None:
    """Draw mean cosines: (layers, layers) between layers, (layers,) between heads of a layer."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    extent = (0.5, len(layers) + 0.5, len(layers) + 0.5, 0.5)
    picture = left.imshow(layers, cmap="RdBu_r", vmin=-1, vmax=1, extent=extent)
    figure.colorbar(picture, ax=left)
    ticks = range(2, len(layers) + 1, 2)
    left.set(title="two layers", xlabel="layer", ylabel="layer", xticks=ticks)
    right.bar(range(1, len(heads) + 1), heads, color="#2a6f97")
    right.set(title="different heads of one layer", xlabel="layer", xticks=ticks, ylim=(-1, 1))
    right.axhline(0, color="0.5", linewidth=0.8)
    figure.savefig(path, dpi=110)


if __name__ == "__main__" and sys.argv[1:] == ["pictures"]:
    pictures()
elif __name__ == "__main__":
    command("Re-attention: blocks of queries.", {"blocks": timed(blocks)})
