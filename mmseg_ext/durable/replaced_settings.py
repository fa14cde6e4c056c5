"""The settings that a checkpoint replaces when a run resumes, to report what changes.

The state of an optimizer contains its settings, and so does the state of a schedule: a learning
rate that was changed in the config has no effect on a resumed run. The Runner compares the settings
before and after it loads the states. Optimizers have many parameter groups, so a setting has a set
of values.
"""

from collections import defaultdict
from typing import Any

# By names such as 'lr' and 'PolyLR.power', the values of all groups and schedules as texts.
Settings = dict[str, set[str]]

# Entries of a parameter group that are not its settings, or that the config selects.
_OTHER_ENTRIES = {"params", "param_names", "fused"}
# What schedules count.
_COUNTS = ("last_step", "best", "num_bad_epochs", "cooldown_counter")


def stored_settings(wrapper: Any, schedules: Any) -> Settings:
    """Return the settings in the states of an optimizer wrapper and of the schedules."""
    found: Settings = defaultdict(set)
    for group in _in_one_list(wrapper.param_groups):
        scheduled = _scheduled_entries(group)
        for key, value in group.items():
            if key not in _OTHER_ENTRIES and key not in scheduled:
                found[key.removeprefix("initial_")].add(_as_text(value))
    for schedule in _in_one_list(schedules or []):
        for key, value in schedule.state_dict().items():
            is_counted = key in _COUNTS or key.startswith("_")
            if isinstance(value, float | int) and not is_counted:
                found[f"{type(schedule).__name__}.{key}"].add(_as_text(value))
    return found


def remaining_rates(wrapper: Any, schedules: Any) -> set[float] | None:
    """Return the learning rates of the rest of the run if no schedule changes them any more."""
    for schedule in _in_one_list(schedules or []):
        state = schedule.state_dict()
        if state["_global_step"] + 1 < state["end"]:
            return None
    return {float(group["lr"]) for group in _in_one_list(wrapper.param_groups)}


def _in_one_list(items: Any) -> list:
    """Return a list, or the elements of the lists that several optimizers have by their names."""
    if not isinstance(items, dict):
        return items
    elements = []
    for part in items.values():
        elements.extend(part)
    return elements


def _scheduled_entries(group: dict) -> set[str]:
    """Return the entries of a group that schedules change; 'initial_lr' is the first 'lr'."""
    scheduled = set()
    for key in group:
        if key.startswith("initial_"):
            scheduled.add(key.removeprefix("initial_"))
    if "momentum" in scheduled:
        scheduled.add("betas")  # Adam's form of it
    return scheduled


def _as_text(value: Any) -> str:
    """Return a value as text, integers as floats: 1 and 1.0 are the same setting."""
    return str(float(value) if isinstance(value, int) else value)


def changed_settings(configured: Settings, kept: Settings) -> list[str]:
    """Return a text such as 'lr is 0.01, not 0.1' for each setting of `configured` that differs."""
    changed = []
    for name, values in kept.items():
        if name in configured and values != configured[name]:
            before = " and ".join(sorted(configured[name]))
            changed.append(f"{name} is {' and '.join(sorted(values))}, not {before}")
    return changed
