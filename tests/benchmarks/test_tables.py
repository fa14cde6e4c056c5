"""The benchmarks' counts next to the papers'."""

import pytest

from benchmarks.external_attention import BLOCKS, count_block


@pytest.mark.parametrize(
    ("name", "parameters", "convention", "giga"),
    [
        ("self-attention", 1_048_576, "all", 292.06),
        ("self-attention, stored weights", 1_048_576, "all", 292.06),
        ("dual attention (DA)", 5_048_960 + 2, "modules", 82.7),  # and two gains
        ("dual attention (DA)", 5_048_960 + 2, "all", 246),
        ("double attention (A2)", 1_048_576, "all", 25.77),
        ("dynamic multi-scale filters (DM)", 3_160_064, "all", 35.1),
        ("Hamburger (NMF)", 525_824, "all", 18.75),
        ("EA, one memory", 558_592, "modules", 9.13),
        ("EA, published order", 591_360, "all", 9.664),
        ("EA, composed", 591_360, "modules", 9.664),
        ("EA, composed", 591_360, "all", 1.107),
    ],
)
def test_costs_of_the_papers_blocks(name, parameters, convention, giga):
    counted_parameters, counted = count_block(name)
    assert counted_parameters == parameters
    assert getattr(counted, convention) / 1e9 == pytest.approx(giga, rel=2e-3)
    # Within the paper's rounding, but for the row whose printed figure is second-hand.
    if BLOCKS[name].paper is not None and name != "EA, one memory":
        assert parameters / 2**20 == pytest.approx(BLOCKS[name].paper[0], abs=0.015)
