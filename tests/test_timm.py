"""The tests with timm, in an environment of their own: its torchvision does not fit the tests'."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.peers import create_environment

ROOT = Path(__file__).parents[1]
FILES = ("backbones/test_timm_encoder.py", "own_dataset/test_encoders.py")


@pytest.mark.long
def test_with_timm(tmp_path):
    """Of a small network of each of four families; no test is left out."""
    create_environment(str(tmp_path / "peers"))
    words = [str(tmp_path / "peers/bin/python"), "-m", "pytest", "-q", "-n", "0"]
    files = [str(ROOT / "tests" / name) for name in FILES]
    result = subprocess.run([*words, *files], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-5000:]
    assert "skipped" not in result.stdout
