"""Packaging of mmseg_ext. Tool settings live in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(
    r"^__version__ = \"(.+)\"", (ROOT / "mmseg_ext/version.py").read_text(), re.M
).group(1)

# The maintained stack. It is an extra because the original packages (mmcv, mmengine,
# mmsegmentation) install the same import names under other distribution names: a hard
# requirement would overwrite whichever of the two is already there.
MM = [
    "onedl-mmcv>=2.3.6",
    "onedl-mmengine>=0.10.12",
    "onedl-mmsegmentation>=1.4.2",
    "matplotlib>=3.8",
    "tensorboard>=2.14",
    "rich>=13",
]
TEST = [
    "pytest>=8",
    "pytest-xdist>=3.5",
    "hypothesis>=6.100",
    "torchmetrics>=1.4",
    "ruff==0.17.5",
]

setup(
    name="mmseg-ext",
    version=VERSION,
    description="External attention, Manhattan attention, lambda layers and re-attention "
    "for mmsegmentation",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["mmseg_ext", "mmseg_ext.*"]),
    install_requires=["torch>=2.4", "numpy>=1.24", "safetensors>=0.4"],
    extras_require={"mm": MM, "test": MM + TEST},
)
