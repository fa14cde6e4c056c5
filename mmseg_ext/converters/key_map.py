"""Functions that rename the keys of a state dict and compare the result with a model."""

import re
from collections.abc import Sequence

from torch import Tensor, nn

from mmseg_ext.errors import join_names

StateDict = dict[str, Tensor]
# (pattern for the full key, replacement as in re.sub); None drops the key.
Rule = tuple[str, str | None]

_SHOWN = 20  # keys in an error


def rename_keys(state_dict: StateDict, rules: Sequence[Rule]) -> StateDict:
    """Rename each key by the first rule whose pattern matches the full key.

    Raises:
        ValueError: if no rule matches a key, or if two keys become the same.
    """
    renamed: StateDict = {}
    unmapped = []
    for key, value in state_dict.items():
        for pattern, replacement in rules:
            match = re.fullmatch(pattern, key)
            if match is None:
                continue
            if replacement is not None:
                name = match.expand(replacement)
                if name in renamed:
                    raise ValueError(f"{key}: two keys of the checkpoint become {name!r}")
                renamed[name] = value
            break
        else:  # no rule matches
            unmapped.append(key)
    if unmapped:
        raise ValueError(f"unmapped keys in the checkpoint: {join_names(unmapped, _SHOWN)}")
    return renamed


def entry(state_dict: StateDict, key: str) -> Tensor:
    """Return `state_dict[key]`.

    Raises:
        ValueError: if the key is missing.
    """
    if key not in state_dict:
        raise ValueError(f"missing keys: {key}")
    return state_dict[key]


def count_classes(state_dict: StateDict, key: str, classifier: bool) -> int | None:
    """Return the classes of the weight `key` (classes, C); None without the classifier."""
    return len(entry(state_dict, key)) if classifier else None


def blocks_in(state_dict: StateDict, prefix: str) -> list[int]:
    """Return the sorted numbers i of all keys `<prefix>.<i>.*`."""
    pattern = re.compile(rf"{re.escape(prefix)}\.(\d+)\.")  # layer3.22.conv1.weight
    blocks = set()
    for key in state_dict:
        match = pattern.match(key)
        if match is not None:
            blocks.add(int(match[1]))
    return sorted(blocks)


def check_keys(state_dict: StateDict, model: nn.Module) -> StateDict:
    """Return `state_dict` if it has the keys and shapes of `model`, which may be on meta.

    Raises:
        ValueError: for missing keys, unexpected keys and other shapes, with a list.
    """
    expected = model.state_dict()
    missing, other_shapes = [], []
    for key, value in expected.items():
        if key not in state_dict:
            missing.append(key)
        elif state_dict[key].shape != value.shape:
            shapes = f"{tuple(state_dict[key].shape)} instead of {tuple(value.shape)}"
            other_shapes.append(f"{key} {shapes}")
    unmapped = [key for key in state_dict if key not in expected]
    problems = []
    if missing:
        problems.append(f"missing keys: {join_names(missing, _SHOWN)}")
    if unmapped:
        problems.append(f"unmapped keys in the checkpoint: {join_names(unmapped, _SHOWN)}")
    if other_shapes:
        problems.append(f"shapes differ: {join_names(other_shapes, _SHOWN)}")
    if problems:
        raise ValueError("; ".join(problems))
    return state_dict
