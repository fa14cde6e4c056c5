"""Counts of the cost table against the papers' tables, its text forms and its command."""

import json

import pytest
import torch

from mmseg_ext.commands.cost_table import main
from mmseg_ext.cost.attention_blocks import (
    CROPS,
    PositionSelfAttention,
    attention_blocks,
    whole_heads,
)
from mmseg_ext.cost.cost_table import (
    cost_markdown,
    count_costs,
    measure_costs,
    training_step,
)
from tests.models import assert_same

MEBI = 2**20


@pytest.fixture(scope="module")
def blocks():
    return {cost.name: cost for cost in count_costs(attention_blocks(), (1, 512, 128, 128))}


def head_cost(crop: str, name: str):
    size, classes = CROPS[crop]
    (cost,) = count_costs({name: whole_heads(classes)[name]}, (1, 2048, *size))
    return cost


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("self-attention", 1_048_576),
        ("dual attention (DA)", 5_048_960 + 2),  # and two gains
        ("double attention (A2)", 1_048_576),
        ("Hamburger (NMF)", 525_824),
        ("EA, paper's first version", 328_192),
        ("EA, one memory", 558_592),
        ("EA, plain", 591_360),
        ("EA, composed", 591_360),
        ("EA, fused", 2 * 64 * 512 + 512),
    ],
)
def test_parameters(blocks, name, parameters):
    assert blocks[name].parameters == parameters


@pytest.mark.parametrize(
    ("name", "convention", "giga"),
    [
        ("self-attention", "all", 292.06),
        ("double attention (A2)", "all", 25.77),
        ("dynamic multi-scale filters (DM)", "all", 35.1),
        ("dual attention (DA)", "module", 82.7),
        ("dual attention (DA)", "all", 246),
        ("EA, paper's first version", "all", 5.37),
        ("EA, one memory", "module", 9.13),
        ("EA, plain", "all", 9.664),
        ("EA, fused", "all", 1.074),
    ],
)
def test_multiply_adds_at_512x128x128(blocks, name, convention, giga):
    counted = getattr(blocks[name], f"{convention}_multiply_adds")
    assert counted / 1e9 == pytest.approx(giga, rel=2e-3)


def test_composing_costs_two_small_products_more_than_the_fused_form(blocks):
    composition = 2 * 64 * 512 * 512 + 64 * 512  # the keys' bias too
    composed = blocks["EA, composed"].all_multiply_adds
    assert composed - blocks["EA, fused"].all_multiply_adds <= composition


@pytest.mark.parametrize(
    "name",
    [
        "self-attention",
        "dual attention (DA)",
        "dynamic multi-scale filters (DM)",
        "Hamburger (NMF)",
    ],
)
def test_paper_parameters_are_reproduced_in_units_of_2_to_the_20(blocks, name):
    cost = blocks[name]
    assert cost.parameters / MEBI == pytest.approx(cost.paper_parameters, abs=0.015)


def test_multiply_adds_against_resolution():
    """External attention doubles with the positions, self-attention's products quadruple."""
    entries = attention_blocks(64)
    small, large = (
        {c.name: c.all_multiply_adds for c in count_costs(entries, (1, 64, 16 * k, 16))}
        for k in (1, 2)
    )
    for name in ("EA, plain", "EA, fused"):
        assert large[name] == 2 * small[name]
    convolutions = 4 * 64 * 64 * 256
    assert large["self-attention"] - 2 * convolutions == 4 * (
        small["self-attention"] - convolutions
    )


def test_head_parameters():
    """EANet's head on VOC, and mmseg's DANet head with 150 classes (24.16 M)."""
    assert head_cost("VOC", "EA").parameters == 11_215_125
    assert head_cost("ADE20K", "DA").parameters / 1e6 == pytest.approx(24.16, abs=5e-3)


def test_fused_head_is_its_convolutions_and_little_else():
    """At 64x64 the two 3x3 convolutions and the classifier are 99.4 % of its multiply-adds."""
    cost = head_cost("ADE20K", "EA, fused")
    positions = 64 * 64
    convolutions = positions * (9 * 2048 * 512 + 9 * 512 * 256 + 256 * 150)
    assert cost.module_multiply_adds == convolutions
    assert cost.all_multiply_adds - convolutions == positions * 2 * 64 * 512


def test_self_attention_is_its_equation():
    block = PositionSelfAttention(6)
    x = torch.randn(1, 6, 3, 4)
    tokens = x.flatten(2)[0].T  # (N, C)
    query, key, value, out = (
        conv.weight[:, :, 0, 0].T for conv in (block.query, block.key, block.value, block.out)
    )
    attention = torch.softmax((tokens @ query) @ (tokens @ key).T, dim=1)
    expected = tokens + attention @ (tokens @ value) @ out
    assert_same(block(x)[0].flatten(1).T, expected)


@pytest.mark.parametrize("name", list(attention_blocks(16)))
def test_every_block_keeps_the_shape_and_trains(name):
    entry = attention_blocks(16)[name]
    module = entry.build()
    x = torch.randn(2, 16, 16, 16)
    assert module.eval()(x).shape == x.shape
    if not entry.fused:
        for grad in training_step(module, x)():
            assert torch.isfinite(grad).all()


def test_every_head_runs():
    entries = whole_heads(3, in_channels=16)
    for entry in entries.values():
        output = entry.build().eval()(torch.randn(1, 16, 8, 8))
        output = output if isinstance(output, torch.Tensor) else output[0]
        assert output.shape == (1, 3, 8, 8)


def test_measured_columns():
    entries = {k: v for k, v in attention_blocks(16).items() if k in ("EA, plain", "EA, fused")}
    shape = (1, 16, 8, 8)
    costs = count_costs(entries, shape)
    measure_costs(costs, entries, shape, rounds=1)
    measure_costs(costs, entries, shape, rounds=1, training=True)
    plain, fused = costs
    assert plain.inference_ms > 0 and plain.training_ms > 0 and fused.inference_ms > 0
    assert fused.training_ms is None
    lines = cost_markdown(costs).splitlines()
    assert lines[0].count("|") == lines[1].count("|") == lines[3].count("|")
    assert "training, ms" in lines[0] and lines[3].startswith("| EA, fused | 2,064 |")


def test_paper_and_measured_side_by_side(blocks):
    text = cost_markdown([blocks["self-attention"], blocks["EA, plain"]])
    assert "| self-attention | 1,048,576 | 1.00 | 1.00 | 17.18 | 292.06 | 292 |" in text
    assert "ms" not in text


def test_command_writes_markdown_and_json(tmp_path, capsys):
    markdown, numbers = tmp_path / "table.md", tmp_path / "table.json"
    arguments = ["--markdown", str(markdown), "--json", str(numbers)]
    assert main(["blocks", "--only", "self-attention", "EA, plain", *arguments]) == 0
    content = json.loads(numbers.read_text())
    assert content["input"] == [1, 512, 128, 128]
    assert [row["parameters"] for row in content["rows"]] == [1_048_576, 591_360]
    assert markdown.read_text() == capsys.readouterr().out

    assert main(["heads", "--crops", "Cityscapes", "--only", "EA", *arguments]) == 0
    content = json.loads(numbers.read_text())["crops"]["Cityscapes"]
    assert content["input"] == [1, 2048, 97, 97]
    assert content["rows"][0]["parameters"] == 11_214_611


def test_command_names_an_unknown_row(capsys):
    assert main(["blocks", "--only", "EA, plane"]) == 1
    assert "EA, plane" in capsys.readouterr().err
