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
    renamed: StateDict = {}
    unmapped = []
    for key, value in state_dict.items():
        matches = ((re.fullmatch(pattern, key), new) for pattern, new in rules)
        match, new = next((found for found in matches if found[0]), (None, None))
        if match is None:
            unmapped.append(key)
        elif new is not None:
            name = match.expand(new)
            if name in renamed:
                raise ValueError(f"{key}: two keys of the checkpoint become {name!r}")
            renamed[name] = value
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
    found = {
        "missing keys": [key for key in expected if key not in state_dict],
        "unmapped keys in the checkpoint": [key for key in state_dict if key not in expected],
        "shapes differ": [
            f"{key} {tuple(state_dict[key].shape)} instead of {tuple(value.shape)}"
            for key, value in expected.items()
            if key in state_dict and state_dict[key].shape != value.shape
        ],
    }
    if problems := [f"{what}: {_listing(keys)}" for what, keys in found.items() if keys]:
        raise ValueError("; ".join(problems))
    return state_dict
