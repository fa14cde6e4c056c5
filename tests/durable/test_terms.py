"""The license of weights is in every file that starts from them."""

import pytest
import torch

from mmseg_ext import get_model
from mmseg_ext.commands import run
from tests.engine.runs import train_here, write_config

TERMS = {"license": "CC BY-NC 4.0: non-commercial use only", "trained_on": "photos"}
SOURCES = {
    "load_from": "load_from = {file!r}\n",
    "backbone": "model['backbone']['init_cfg'] = dict("
    "type='Pretrained', checkpoint={file!r}, prefix='backbone.')\n",
}


@pytest.mark.parametrize("source", SOURCES)
def test_files_keep_the_license_of_the_weights_they_start_from(source, tmp_path):
    file, work = str(tmp_path / "licensed.pth"), tmp_path / "work"
    plain = write_config(tmp_path)
    torch.save({"state_dict": get_model(plain).state_dict(), "meta": TERMS}, file)
    config = write_config(tmp_path, SOURCES[source].format(file=file), "licensed.py")
    train_here(config, work, "train_cfg.max_iters=2")
    trained = get_model(plain, weights=work / "iter_2.pth").terms
    train_here(plain, work, "train_cfg.max_iters=3", flags=("--resume",))
    assert trained == get_model(plain, weights=work / "iter_3.pth").terms == TERMS
    for name in ("small.pth", "small.safetensors"):
        words = [str(work / "iter_3.pth"), str(tmp_path / name), "--no-hash"]
        assert run("publish_model", [*words, "--about", "license=stricter"]) == 0
        terms = get_model(plain, weights=tmp_path / name).terms
        assert terms == {**TERMS, "license": "stricter"}
