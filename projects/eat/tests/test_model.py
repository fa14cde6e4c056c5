"""The networks against the published code, and external attention."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from projects.eat.model import Classifier, OffsetAttention, PartSegmenter
from projects.eat.recipes import RECIPES
from tests.parity import Fixture, assert_parity

DATA = Path(__file__).parent / "data"

# Published linear map (and the norm behind it) -> ours.
_EMBEDDING = {"conv1": "embedding.0", "bn1": "embedding.0", "conv2": "embedding.1"}
_CLASSIFIER = {
    **_EMBEDDING,
    "bn2": "embedding.1",
    **{
        f"gather_local_{i}.{kind}{n}": f"aggregations.{i}.layer{n}"
        for i in (0, 1)
        for kind in ("conv", "bn")
        for n in (1, 2)
    },
    **{f"pt_last.{kind}{n}": f"before.{n - 1}" for kind in ("conv", "bn") for n in (1, 2)},
    "conv_fuse.0": "fuse",
    "conv_fuse.1": "fuse",
    "linear1": "head.0",
    "bn6": "head.0",
    "linear2": "head.2",
    "bn7": "head.2",
}
_SEGMENTER = {
    **_EMBEDDING,
    "bn2": "embedding.1",
    "conv_fuse.0": "fuse",
    "conv_fuse.1": "fuse",
    "label_conv.0": "of_class",
    "label_conv.1": "of_class",
    "convs1": "head1",
    "bns1": "head1",
    "convs2": "head2",
    "bns2": "head2",
}


def load_published(network: torch.nn.Module, state: dict, layers: dict, last: dict) -> None:
    """Load published weights under our names, 1x1 convolutions as linear layers."""
    renamed = {}
    for key, value in state.items():
        name, leaf = key.rsplit(".", 1)
        parts = name.removeprefix("pt_last.").split(".")
        if parts[0].startswith("sa"):
            layer = f"attentions.{int(parts[0][2:]) - 1}"
            ours = {
                "k_conv": f"{layer}.attention.keys",
                "v_conv": f"{layer}.attention.values",
                "trans_conv": f"{layer}.offset.linear",
                "after_norm": f"{layer}.offset.norm",
            }.get(parts[1])
            if ours is None:
                continue
        elif name in last:
            ours = last[name]
        else:
            is_norm = "bn" in name or name in ("conv_fuse.1", "label_conv.1")
            ours = f"{layers[name]}.{'norm' if is_norm else 'linear'}"
        renamed[f"{ours}.{leaf}"] = value.squeeze(-1) if value.ndim == 3 else value
    network.load_state_dict(renamed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_classifier_parity_with_pct_pytorch(dtype):
    fixture = Fixture("pct_classifier", DATA)
    state = {k: v for k, v in fixture.state_dict.items() if ".q_conv." not in k}
    network = Classifier(40, "self")
    # The published module ties q_conv to k_conv: of the two entries the last to load counts.
    load_published(network, state, _CLASSIFIER, {"linear3": "head.4"})
    network.to(dtype).eval()
    attended = []
    network.before.register_forward_hook(lambda module, args, out: attended.append(args[0]))
    cloud = fixture.inputs["cloud"].to(dtype).transpose(1, 2)
    with torch.no_grad():
        logits = network(cloud)
        joined = network.attended(attended[0]).transpose(1, 2)
    assert_parity(joined[:, ::8, ::8], fixture.outputs["attended"])
    assert_parity(logits, fixture.outputs["logits"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_segmenter_parity_with_pct(dtype):
    fixture = Fixture("pct_part_segmenter", DATA)
    network = PartSegmenter(50, 16, "self")
    load_published(network, fixture.state_dict, _SEGMENTER, {"convs3": "head3"})
    network.to(dtype).eval()
    cloud = fixture.inputs["cloud"].to(dtype).transpose(1, 2)
    with torch.no_grad():
        logits = network(cloud, torch.tensor(fixture.meta["label"]))
    assert_parity(logits.transpose(1, 2)[:, :, ::4], fixture.outputs["logits"])


@pytest.mark.parametrize(
    ("data", "attention", "count"),
    [
        ("modelnet40", "self", 2_876_136),  # PCT_Pytorch's Pct
        ("shapenet-part", "self", 2_446_130),  # PCT's Point_Transformer_partseg
        ("modelnet40", "external", 2_876_136 - 4 * (256 * 64 + 256 * 257 - 2 * 256 * 64)),
        ("shapenet-part", "external", 2_446_130 - 4 * (128 * 32 + 128 * 129 - 2 * 128 * 64)),
    ],
)
def test_parameters(data, attention, count):
    """External attention has two memories of 64 slots for the keys and the values with bias."""
    assert sum(p.numel() for p in RECIPES[data].build(attention).parameters()) == count


@pytest.mark.parametrize("attention", ["external", "self"])
@pytest.mark.parametrize("data", ["solids", "solid-parts"])
def test_every_parameter_gets_a_gradient(data, attention):
    network = RECIPES[data].build(attention)
    points, labels = torch.randn(8, 256, 3), torch.arange(8)
    if data == "solids":
        loss = F.cross_entropy(network(points), labels)
    else:
        loss = F.cross_entropy(network(points, labels).flatten(0, 1), torch.arange(8 * 256) % 14)
    loss.backward()
    without = {n for n, p in network.named_parameters() if not p.grad.abs().sum() > 1e-8}
    # Batch norm cancels a bias before it. The bias of the values also reaches a batch norm.
    assert {n for n in without if not n.endswith((".linear.bias", ".values.bias"))} == set()


def test_external_attention_takes_the_offset_from_its_memories():
    """x + ReLU(norm(linear(x - V a))) with equations 10 and 11 of the paper written out."""
    layer = OffsetAttention(16, "external").double().eval()
    memories = layer.attention
    torch.nn.init.normal_(memories.mk.weight)
    torch.nn.init.normal_(memories.mv.weight)
    x = torch.randn(1, 20, 16, dtype=torch.float64)
    logits = x[0] @ memories.mk.weight.T  # N, S
    columns = logits.exp() / logits.exp().sum(0, keepdim=True)
    rows = columns / columns.sum(1, keepdim=True)
    expected = x + layer.offset(x - (rows @ memories.mv.weight.T)[None])
    torch.testing.assert_close(layer(x), expected)
