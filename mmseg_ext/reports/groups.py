"""Which runs repeat one experiment: their configs differ only in seed, fold and folders."""

import ast
import re
from collections.abc import Sequence
from typing import Any

# Top-level entries of a resolved config that a repetition may change.
_OF_A_REPETITION = {"work_dir", "experiment_name", "fold", "launcher", "load_from", "randomness"}
_OF_A_REPETITION |= {"resume", "seed"}
_FOLD = re.compile(r"fold[-_ ]?\d+", re.IGNORECASE)  # fold3 in the name of a list


def experiment_of(config: str) -> str:
    """Return the text of a config without what differs between repetitions; nothing is executed."""
    try:
        statements = ast.parse(config).body
    except (SyntaxError, ValueError):  # of another program
        return config
    kept, folder = [], ""
    for statement in statements:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        name = target.id if isinstance(target, ast.Name) else ""
        if name == "work_dir" and isinstance(statement.value, ast.Constant):  # type: ignore
            folder = str(statement.value.value)  # type: ignore  # of an `Assign`
        if name not in _OF_A_REPETITION:
            kept.append(ast.unparse(statement))
    text = _FOLD.sub("fold", "\n".join(kept))
    return text.replace(folder, "") if folder else text  # as in the path of the label maps


def group_runs(runs: Sequence[Any]) -> list[list[Any]]:
    """Return runs, which have a `config`, in groups that repeat one experiment, in their order."""
    groups: dict[str, list[Any]] = {}
    for run in runs:
        # A run without a config repeats no other one.
        key = experiment_of(run.config) if run.config else f"run {id(run)}"
        groups.setdefault(key, []).append(run)
    return list(groups.values())
