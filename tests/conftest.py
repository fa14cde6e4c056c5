"""Shared set-up: the registry's scope, one seed per test, and two threads at most."""

import pytest
import torch

from mmseg_ext import register_all_modules


@pytest.fixture(scope="session", autouse=True)
def _registered():
    register_all_modules()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
