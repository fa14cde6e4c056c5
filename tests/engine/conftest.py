"""The environment of runs under test."""

import pytest

from tests.engine.runs import LAUNCHER


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    """Remove a launcher's variables, and restore them after the test."""
    restarts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    for name in (*LAUNCHER, *restarts, "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("LOCAL_RANK", "0")
