"""How a published state dict becomes ours, and the check that nothing is left over."""

import re
from collections.abc import Sequence

from torch import Tensor, nn

StateDict = dict[str, Tensor]
# (pattern that matches a whole key, replacement as in re.sub; None drops the key by name)
Rule = tuple[str, str | None]

_SHOWN = 20


def _listing(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more


def rename_keys(state_dict: StateDict, rules: Sequence[Rule]) -> StateDict:
    """Each key by the first rule that matches it whole.

    Raises:
        ValueError: listing the keys that no rule matches, or two keys that meet in one name.
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
                    raise ValueError(f"two keys of the checkpoint map to {name!r}, one is {key!r}")
                renamed[name] = value
            break
        else:
            unmapped.append(key)
    if unmapped:
        raise ValueError(f"unmapped keys in the checkpoint: {_listing(unmapped)}")
    return renamed


def entry(state_dict: StateDict, key: str) -> Tensor:
    """`state_dict[key]`.

    Raises:
        ValueError: naming the key, where it is missing.
    """
    if key not in state_dict:
        raise ValueError(f"missing keys: {key}")
    return state_dict[key]


def check_keys(state_dict: StateDict, model: nn.Module) -> StateDict:
    """`state_dict`, after checking that it fills `model` (which may be on the meta device) exactly.

    Raises:
        ValueError: listing missing and unexpected keys and differing shapes.
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
