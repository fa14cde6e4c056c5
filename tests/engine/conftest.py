"""What every run under test starts from."""

import pytest

from tests.engine.runs import LAUNCHER


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    """A launcher's variables are the test's own, and are put back whatever a tool sets."""
    restarts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    for name in (*LAUNCHER, *restarts, "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("LOCAL_RANK", "0")
