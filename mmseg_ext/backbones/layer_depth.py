"""How deep a parameter lies, for learning rates that fall towards the input.

`get_layer_depth(param_name, prefix)` of a backbone is mmpretrain's convention: 0 is the embedding
or the stem, then each block counts one, and what follows the blocks has the last depth.
"""

from itertools import accumulate


def in_blocks(param_name: str, prefix: str, count: int) -> tuple[int, int]:
    """The depth of a parameter of a transformer with `blocks` and a `norm`, and the depths' number.

    Raises:
        ValueError: if the name does not begin with `prefix`.
    """
    part, *rest = _inside(param_name, prefix)
    if part == "blocks":
        return int(rest[0]) + 1, count + 2
    return (count + 1 if part in ("norm", "head") else 0), count + 2


def in_stages(param_name: str, prefix: str, counts: list[int]) -> tuple[int, int]:
    """The same for a hierarchical backbone, whose stage i has `counts[i]` blocks.

    A layer between two stages (`downsamples.i`) is as deep as the first block after it.

    Raises:
        ValueError: if the name does not begin with `prefix`.
    """
    part, *rest = _inside(param_name, prefix)
    last = sum(counts) + 1
    starts = [0, *accumulate(counts)]
    if part == "stages":
        depth = starts[int(rest[0])] + int(rest[1]) + 1
    elif part.startswith("layer"):
        depth = starts[int(part.removeprefix("layer")) - 1] + int(rest[0]) + 1
    elif part == "downsamples":
        depth = starts[int(rest[0]) + 1] + 1
    else:
        depth = last if part in ("out_norms", "classifier", "fc") else 0
    return depth, last + 1


def _inside(param_name: str, prefix: str) -> list[str]:
    if not param_name.startswith(prefix):
        raise ValueError(f"{param_name!r} is no parameter under {prefix!r}")
    return param_name.removeprefix(prefix).split(".")
