"""The environment of runs under test."""

from tests.engine.conftest import _no_launcher  # noqa: F401  a fixture for each test
