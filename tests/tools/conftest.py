"""Tests of the tools start runs in their own process too, so they take the same fixture."""

from tests.engine.conftest import _own_visualizers  # noqa: F401
