"""Where the configs are."""

from pathlib import Path

CONFIGS = Path(__file__).parents[1] / "configs"
