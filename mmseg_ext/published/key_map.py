"""Functions that rename the keys of a state dict and compare the result with a model."""

import re
from collections.abc import Sequence

from torch import Tensor, nn

StateDict = dict[str, Tensor]
# (pattern for the full key, replacement as in re.sub); None drops the key.
Rule = tuple[str, str | None]

_SHOWN = 20


def _listing(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more


def rename_keys(state_dict: StateDict, rules: Sequence[Rule]) -> StateDict:
    """Rename each key by the first rule whose pattern matches the full key.

    Raises:
        ValueError: if no rule matches a key, or if two keys become the same.
    """
    compiled = [(re.compile(pattern), replacement) for pattern, replacement in rules]
    renamed: StateDict = {}
    unmapped = []
    for key, value in state_dict.items():
        for pattern, replacement in compiled:
            match = pattern.fullmatch(key)
            if match is None:
                continue
            if replacement is not None:
                name = match.expand(replacement)
                if name in renamed:
                    raise ValueError(f"{key}: two keys of the checkpoint become {name!r}")
                renamed[name] = value
            break
        else:
            unmapped.append(key)
    if unmapped:
        raise ValueError(f"unmapped keys in the checkpoint: {_listing(unmapped)}")
    return renamed


def entry(state_dict: StateDict, key: str) -> Tensor:
    """Return `state_dict[key]`.

    Raises:
        ValueError: if the key is missing.
    """
    if key not in state_dict:
        raise ValueError(f"missing keys: {key}")
    return state_dict[key]


def blocks_in(state_dict: StateDict, prefix: str) -> list[int]:
    """Return the sorted numbers i of all keys `<prefix>.<i>.*`."""
    pattern = re.compile(rf"{re.escape(prefix)}\.(\d+)\.")
    return sorted({int(match[1]) for key in state_dict if (match := pattern.match(key))})


def check_keys(state_dict: StateDict, model: nn.Module) -> StateDict:
    """Return `state_dict` if it has the keys and shapes of `model`, which may be on meta.

    Raises:
        ValueError: for missing keys, unexpected keys and other shapes, with a list.
    """
    expected = model.state_dict()
    problems = []
    missing = [k for k in expected if k not in state_dict]
    unexpected = [k for k in state_dict if k not in expected]
    if missing:
        problems.append(f"missing keys: {_listing(missing)}")
    if unexpected:
        problems.append(f"unmapped keys in the checkpoint: {_listing(unexpected)}")
    shapes = [
        f"{k} {tuple(state_dict[k].shape)} instead of {tuple(v.shape)}"
        for k, v in expected.items()
        if k in state_dict and state_dict[k].shape != v.shape
    ]
    if shapes:
        problems.append(f"shapes differ: {_listing(shapes)}")
    if problems:
        raise ValueError("; ".join(problems))
    return state_dict
