"""The tutorial notebook: its code cells run in order, and the stored outputs are small."""

import contextlib
import io
import json
import logging
import warnings

import matplotlib.pyplot as plt

from tests.configs import CONFIGS

NOTEBOOK = CONFIGS.parent / "demo" / "mmseg_ext_tutorial.ipynb"


def test_the_cells_run(monkeypatch):
    assert NOTEBOOK.stat().st_size < 250_000  # with the stored pictures
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    space, printed = {"__name__": "notebook"}, io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
            for number, text in enumerate(code):
                exec(compile(text, f"cell {number}", "exec"), space)
    finally:
        logging.disable(logging.NOTSET)  # as the notebook leaves it
    assert len(set(space["result"].labels.flat)) == 3
    assert space["slots"].shape[0] == 64
    assert type(space["runner"].model.decode_head).__name__ == "MaSAHead"
    losses = space["history"]
    assert len(losses) == 20 and losses[-3:].mean() < losses[:3].mean()
    assert space["difference"] < 1e-4 and space["agreeing"] > 0.999
    assert printed.getvalue().count("slot ") == 5
