"""Which checkpoints of a run stay: a function of names alone, without files.

`checkpoint_hooks` lists the folder, and removes what this module names if it is of the same run.
"""

import re
from collections.abc import Iterable, Sequence

from mmseg_ext.durable.work_dir import series_pattern


def series_of(name: str, template: str) -> tuple[str, int] | None:
    """Return what is before the template in the name of a checkpoint, and its step.

    'best_mIoU_iter_500.pth' is ('best_mIoU_', 500) for 'iter_{}.pth', and 'iter_500.pth' is
    ('', 500): a regular checkpoint.
    """
    found = re.fullmatch(f"(.*?){series_pattern(template).pattern}", name)
    return (found[1], int(found[2])) if found else None


def replaced_checkpoints(
    names: Iterable[str], template: str, step: int, kept: Sequence[int], best: Iterable[str]
) -> dict[str, str]:
    """Return the checkpoints to remove when the one of `step` is complete: what replaces each.

    Args:
        names: of the files in the folder.
        template: of the names of regular checkpoints, such as 'iter_{}.pth'.
        kept: the steps whose regular checkpoints stay, sorted; none keeps all of them.
        best: the names of the best checkpoints, one for each score.
    """
    existing = set(names)
    needed = [*best, *(template.format(number) for number in kept)]
    newest = {}  # the last needed one of each series; later steps are later in `kept`
    for name in needed:
        found = series_of(name, template)
        if found is not None:
            newest[found[0]] = name
    replaced = {}
    for name in sorted(existing.difference(needed)):
        found = series_of(name, template)
        if found is None:  # of somebody else
            continue
        series, saved_step = found
        # A score that this run does not keep has no newer one, and stays. After a resume from an
        # earlier checkpoint the later ones stay, too: they are replaced when they are written.
        newer = newest.get(series)
        if newer in existing and saved_step < step:
            replaced[name] = newer
    return replaced
