"""Statistics of attention maps at other image sizes, on a model trained at one size."""

import json

import pytest
import torch

from benchmarks.token_count import CELLS, main, scenes


def test_scenes_ask_for_the_mean_and_keep_their_cells():
    images, labels = scenes(3, 2, torch.Generator().manual_seed(0))
    cells = images.mean(1).unflatten(1, (CELLS, 32)).unflatten(3, (CELLS, 32)).mean((2, 4))
    above = cells > cells.mean((1, 2), keepdim=True)
    expected = above.long().repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert (expected == labels).float().mean() > 0.95


def test_rescaled_statistics_hold_at_other_sizes(tmp_path, capsys):
    """Learned at 17 tokens, asked at 17, 65 and 257."""
    assert main(["--iterations", "200", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["tokens"] for row in rows] == [17, 65, 257]
    home = rows[0]
    assert home["rescaled"] > 0.75
    assert home["as learned"] == pytest.approx(home["rescaled"], abs=1e-3)
    for row in rows[1:]:
        assert row["rescaled"] > home["rescaled"] - 0.05
        assert row["as learned"] < home["rescaled"] - 0.3
        assert row["estimated anew"] > row["as learned"]
    assert "257" in capsys.readouterr().out
