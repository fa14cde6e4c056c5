"""Files of checkpoints and weights: read without running code, and written atomically.

`read_checkpoint` reads both formats, torch's and safetensors. torch's weights-only unpickler reads
a torch file, after `_check_format` has refused the formats for which torch takes another reader.
Then `rebuild` copies what was read into objects of known types. `write_weights` writes weights
with their classes and their license.
"""

import contextlib
import glob
import hashlib
import io
import json
import os
import pickle
import re
import tarfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor, serialization

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.checkpoint.plain_data import STAND_INS, UnknownType, rebuild
from mmseg_ext.errors import CheckpointError, one_line, pointer_problem
from mmseg_ext.torch_versions import HAS_ALLOW_LIST, HAS_SAFE_TAR, allowed_globals

# Where published checkpoints keep the state dict: mmengine, RMT and timm, EANet and EMANet, EMA.
_WRAPPERS = ("state_dict", "model", "net", "state_dict_ema")
_TRUST = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"  # torch's own variable
LAST = "last_checkpoint"  # mmengine's text file with the path of the newest checkpoint
TERMS = ("license", "trained_on")  # entries of `meta` that every file made from weights keeps
# Ends in eight digits of the file's SHA-256, as `write_weights` names files:
# ea_r18-0123abcd.safetensors. A date, as in ea_r18-20251129.safetensors, is not compared; two in
# 100,000 hashes look like one.
_DATE = r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"
_HASHED = re.compile(rf"-(?!{_DATE}\.)([0-9a-f]{{8}})\.safetensors")


class Origin(NamedTuple):
    """The run of a checkpoint if it is known, and the time when it was saved."""

    run: str | None
    saved_at: float
    has_optimizer: bool  # an archive of weights has none


def origin_of(path: Path) -> Origin:
    """Return the origin of a checkpoint, also of a file that cannot be read."""
    try:
        content = read_checkpoint(path, mmap=True)
        meta = dict(content["meta"])
        has_optimizer = "optimizer" in content
    except Exception:  # `read_checkpoint` reports files that cannot be read
        meta = {}
        has_optimizer = False
    saved_at = meta.get("saved_at")
    if not isinstance(saved_at, float):  # a copied file may have another time
        saved_at = path.stat().st_mtime
    return Origin(meta.get("run"), saved_at, has_optimizer)


def best_checkpoint(work_dir: Path) -> Path | None:
    """Return the newest of the best checkpoints of the last run in a folder, else its last one.

    With `out_dir` they are in the folder that `last_checkpoint` names, from the training's current
    folder on.
    """
    paths, last = [*work_dir.glob("*.pth")], work_dir / LAST
    if not paths and last.is_file():
        folder = Path(last.read_text(errors="replace").strip()).parent
        paths = [*folder.glob("*.pth")] if folder != Path() else []  # a name alone has no folder
    origins = {path: origin_of(path) for path in paths}
    if not origins:
        return None

    def saved_at(path: Path) -> float:
        return origins[path].saved_at

    newest = max(origins, key=saved_at)
    best = []
    for path, origin in origins.items():  # an earlier run can have left one, too
        if path.name.startswith("best_") and origin.run in (origins[newest].run, None):
            best.append(path)
    return max(best, key=saved_at, default=newest)


def read_checkpoint(path: str | Path, map_location: Any = "cpu", mmap: bool | None = None) -> Any:
    """Return the content of a `.safetensors` or torch file without running code from it.

    A `.safetensors` file gives `state_dict` and `meta`, like a torch file. With `mmap` tensors stay
    on the disk, and neither checksums nor the hash in the name of a `.safetensors` are compared.
    `TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1` turns the protection off: torch then unpickles the file.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: for a damaged file, or objects that `rebuild` does not know.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint file{hashed_name_hint(path)}")
    with path.open("rb") as file:
        if problem := pointer_problem(file.read(64)):
            raise CheckpointError(f"{path}: {problem}")
        if path.suffix != ".safetensors":
            return read_torch_file(file, path, map_location, mmap)
    with _describe_errors(path):
        from safetensors import safe_open

        if not mmap:
            _compare_hash(path)
        with safe_open(path, "pt", device=str(map_location or "cpu")) as file:
            meta: dict = dict(file.metadata() or {})
            meta.pop("format", None)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if "dataset_meta" in meta:
            with contextlib.suppress(ValueError):  # of another program, which wrote no JSON
                meta["dataset_meta"] = json.loads(meta["dataset_meta"])
        return rebuild({"state_dict": tensors, "meta": meta})


def hashed_name_hint(path: Path) -> str:
    """Return a hint if there is no file of this name, but a name with a hash by `publish_model`."""
    pattern = f"{glob.escape(path.stem)}-{'[0-9a-f]' * 8}{path.suffix}"
    found = next(path.parent.glob(pattern), None)
    if found is None:
        return ""
    return f"; did you mean {found}?"


def _compare_hash(path: Path) -> None:
    """Raise ValueError if the name has digits of another SHA-256 than the file.

    The format has no checksum. In torch's zip format each entry has one, and names of `.pth` files
    prove nothing: mmsegmentation's `publish_model` appends the digits of its input.
    """
    expected = _HASHED.search(path.name)
    if expected is None:
        return
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    if digest.hexdigest()[:8] != expected[1]:
        raise ValueError(
            f"its SHA-256 does not begin with {expected[1]} as in its name; copy or download it "
            "again, or rename it if you have changed it, or these digits are something else"
        )


def read_torch_file(
    file: BinaryIO, name: str | Path, map_location: Any = "cpu", mmap: bool | None = None
) -> Any:
    """Return the content of an open torch file, called `name` in errors, as `read_checkpoint`."""
    trusted = os.environ.get(_TRUST, "0").lower() in ("1", "y", "yes", "true")
    with _describe_errors(name):
        _check_format(file, mmap)
        source = str(name) if mmap else file  # torch maps paths only, and 2.1 no `Path`
        with allowed_globals(STAND_INS):  # which are those of mmengine's Runner
            content = serialization.load(source, map_location, weights_only=not trusted, mmap=mmap)
        return rebuild(content, trusted)


def _check_format(file: BinaryIO, mmap: bool | None) -> None:
    """Raise ValueError for a format that torch reads by another reader than its weights-only one.

    Also for a wrong checksum, which torch ignores.
    """
    file.seek(0)
    begin = file.read(4)
    if begin == b"PK\x03\x04":  # torch recognizes its format since 1.6 by these bytes
        with zipfile.ZipFile(file) as archive:
            # Before torch 2.6, `torch.load(weights_only=True)` runs TorchScript's loader.
            if any(name.endswith("constants.pkl") for name in archive.namelist()):
                raise ValueError("it is a TorchScript archive")
            if not mmap and (changed := archive.testzip()):
                raise ValueError(f"the checksum of {changed} is wrong")
    elif begin[:1] != b"\x80":  # of a pickle
        raise ValueError("it is not a torch file")
    file.seek(0)
    if not HAS_SAFE_TAR and tarfile.is_tarfile(file):
        raise ValueError(
            f"torch {torch.__version__} can run code from tar archives; open it with torch 2.6 or "
            "newer, and save it again with torch.save"
        )
    file.seek(0)


@contextlib.contextmanager
def _describe_errors(name: str | Path) -> Iterator[None]:
    try:
        yield
    except (pickle.UnpicklingError, UnknownType) as error:
        # In torch's long text: 'Unsupported global: GLOBAL os.mkdir was not ...'; in that of
        # `UnknownType`: 'an object of type Foo'.
        found = re.search(r"GLOBAL ([\w.]+)|of type ([\w.]+)", str(error))
        what = f" such as {found[1] or found[2]}" if found else ""
        hint = f"if you trust its source, set {_TRUST}=1 for one run"
        if not HAS_ALLOW_LIST:
            hint += "; checkpoints of mmengine's Runner need torch 2.4"
        raise CheckpointError(
            f"{name}: contains objects other than tensors and plain data{what}, and loading them "
            f"could run code; {hint}"
        ) from error
    except Exception as error:  # damaged files raise errors of every type
        reason = one_line(error, 200) or type(error).__name__
        raise CheckpointError(f"{name}: is not an intact checkpoint ({reason})") from error


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Return the name -> tensor mapping in a `.safetensors` or torch file, on the CPU.

    Raises:
        FileNotFoundError, CheckpointError: as `read_checkpoint`.
        ValueError: for a file without a state dict.
    """
    return unwrap_state_dict(read_checkpoint(path), str(path))


def unwrap_state_dict(content: Any, source: str) -> dict[str, Tensor]:
    """Return the state dict that `content` is, or contains under a usual key."""
    if isinstance(content, dict):
        for key in _WRAPPERS:
            if isinstance(content.get(key), dict):
                content = content[key]
                break
    is_state_dict = isinstance(content, dict) and bool(content)
    if not is_state_dict or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{source}: contains no state dict (a mapping from names to tensors)")
    weights = {str(name).removeprefix("module."): value for name, value in content.items()}
    if len(weights) < len(content):
        raise ValueError(f"{source}: two names differ only by the prefix 'module.'")
    return weights


def terms_of(content: object) -> dict[str, str]:
    """Return the license and the training data that a file's `meta` names."""
    if not isinstance(content, dict) or not isinstance(content.get("meta"), dict):
        return {}
    meta = content["meta"]
    return {key: meta[key] for key in TERMS if isinstance(meta.get(key), str)}


def classes_of(content: object, source: str | Path) -> dict[str, list] | None:
    """Return the `classes` and, if they are known, the `palette` that a file's `meta` names.

    mmsegmentation 1.x and this package write `meta["dataset_meta"]`, 0.x wrote `meta["CLASSES"]`
    and `meta["PALETTE"]`. What cannot be read is left out, with a warning that names `source`.
    """
    meta = content.get("meta") if isinstance(content, dict) else None
    if isinstance(meta, dict):
        old = {"classes": meta.get("CLASSES"), "palette": meta.get("PALETTE")}
        meta = meta.get("dataset_meta") or old
    if not meta:
        return None
    names = meta.get("classes") if isinstance(meta, dict) else 0
    if not isinstance(names, list | tuple | None):
        text = f"{source}: its metadata have no list of classes; the file's classes are not used"
        warnings.warn(text, stacklevel=4)
    if not isinstance(names, list | tuple) or not names:
        return None
    found: dict[str, list] = {"classes": list(map(str, names))}
    try:
        palette = np.array([] if meta.get("palette") is None else meta["palette"], int)
        if palette.size:
            found["palette"] = palette.reshape(len(names), 3).tolist()
    except (TypeError, ValueError):  # also for rows of several lengths
        text = f"{source}: its palette is not {len(names)} colors RGB, one for each class"
        warnings.warn(f"{text}; the file's palette is not used", stacklevel=4)
    return found


def write_weights(
    weights: dict[str, Tensor],
    path: str | Path,
    dataset_meta: dict | None = None,
    hash_in_name: bool = False,
    about: dict[str, str] | None = None,
    source: str | Path | None = None,
) -> Path:
    """Write weights, with the classes and the palette, and return the path.

    A `.pth` contains `state_dict` and `meta`, a `.safetensors` has `meta` as its metadata.

    Args:
        dataset_meta: the dataset's classes and palette, as lists.
        hash_in_name: append eight digits of the file's SHA-256 to its name.
        about: further entries of `meta`.
        source: the file that the weights were read from.

    Raises:
        ValueError: unless the name of `path` ends in `.pth` or `.safetensors`, and if it is
            `source`, which often has more than weights.
        NotWritten: for a full disk, a read-only folder, ...
    """
    path = Path(path)
    if path.suffix not in (".pth", ".safetensors"):
        raise ValueError(f"{path}: the file's name must end in .pth or .safetensors")
    # A name with a hash can be that of the same content only.
    if source and not hash_in_name and path.exists() and path.samefile(source):
        raise ValueError(f"{path}: is the input, too, and would be replaced; set another output")
    dense = {"memory_format": torch.contiguous_format}  # safetensors refuses shared storage
    weights = {name: value.detach().cpu().clone(**dense) for name, value in weights.items()}
    meta: dict[str, Any] = dict(about or {})
    if dataset_meta is not None:
        meta["dataset_meta"] = dataset_meta
    if path.suffix == ".safetensors":
        from safetensors.torch import save

        texts = {"format": "pt"}  # the format allows only texts as metadata
        for key, value in meta.items():
            texts[key] = value if isinstance(value, str) else json.dumps(value)
        data = save(weights, texts)
    else:
        buffer = io.BytesIO()  # `torch.save` to a path hides why writing failed
        torch.save({"state_dict": weights, "meta": meta}, buffer)
        data = buffer.getbuffer()
    if hash_in_name:
        path = path.with_stem(f"{path.stem}-{hashlib.sha256(data).hexdigest()[:8]}")
    with atomic_write(path) as part:
        part.write_bytes(data)
    return path
