"""The classes of a project for your own images, from the values that its annotations have."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmseg_ext.datasets.label_loading import join_names
from mmseg_ext.own_dataset.annotations.masks import BACKGROUND

IGNORED = 255


def update_classes(
    before: Mapping[str, Any] | None,
    labels: Mapping[int, str],
    names: Sequence[str] | None = None,
    ignored: Sequence[str] = (),
) -> tuple[list[str], dict[str, int], list[str]]:
    """Return classes and labels as `assign_classes`, if an earlier run had others, and notes.

    A label keeps its class, which `names` can rename. A new label gets a class at the end, or the
    one with its name. A class without a label stays.

    Raises:
        ValueError: as `assign_classes`, and if no label is known.
    """
    if before is None:
        own, assigned = assign_classes(labels, names, ignored)
        steps = np.diff(sorted(labels))
        is_far = max(labels) == IGNORED and len(steps) > 1 and steps[-1] > 2 * max(steps[:-1])
        if names or not is_far or assigned.get("255", IGNORED) == IGNORED:
            return own, assigned, []
        note = f"255 is {own[-1]}; if its pixels are to be ignored, start a new project with"
        return own, assigned, [f"{note} --ignore 255"]
    known: dict[str, int] = before["labels"]
    if not known.keys() & set(labels.values()):
        raise ValueError(
            f"this project has the values {join_names([*known])}, but the annotations have "
            f"{join_names([*labels.values()])}; start a new project"
        )
    gone = [t for t, i in known.items() if t not in labels.values() and i != IGNORED]
    ignored = [text for text in ignored if text in (*labels.values(), *gone) or text not in known]
    named = BACKGROUND in labels.values()  # else labels are numbers and colors
    values = [text.replace("#", "0x") for text in gone]
    numbers = [max(labels) + 1 + i if named else int(text, 0) for i, text in enumerate(values)]
    every = dict(sorted((dict(labels) | dict(zip(numbers, gone, strict=True))).items()))
    try:
        own, assigned = assign_classes(every, names, ignored)
    except ValueError:  # perhaps `names` are those of the labels that are left
        own, assigned = assign_classes(labels, names, ignored)
    classes, found, notes = list(before["classes"]), dict(known), []
    notes += [f"no annotation has {t} now; its class {classes[known[t]]} stays" for t in gone]
    for text, i in assigned.items():
        old = known.get(text, IGNORED)
        if text in ignored:
            found[text] = IGNORED
            if old != IGNORED:
                notes.append(f"{text} is ignored now; its class {classes[old]} stays")
        elif names and IGNORED not in (i, old) and classes[old] != own[i]:
            notes.append(f"class {classes[old]} is called {own[i]} now")
            classes[old] = own[i]
    for text, i in assigned.items():
        if i == IGNORED or (text in known and not names):
            found.setdefault(text, i)
        elif found.get(text, IGNORED) == IGNORED:
            name = own[i] if names or named else f"class_{len(classes)}"
            if name not in classes or not (names or named):
                notes.append(f"{text} is new: {name} is class {len(classes)}")
                classes.append(name)
            found[text] = classes.index(name)
    classes += [name for name in own if names and name not in classes]
    if wrong := [name for name in classes if classes.count(name) > 1]:
        raise ValueError(f"class {wrong[0]!r}: an earlier run has this name for another value")
    return classes, found, notes


def assign_classes(
    labels: Mapping[int, str], names: Sequence[str] | None = None, ignored: Sequence[str] = ()
) -> tuple[list[str], dict[str, int]]:
    """Return the classes, and the class of each label; 255 for ignored labels.

    The value 255 of masks is ignored if the other values are 0, 1, 2, ..., of which one can be
    missing, or numbers of named classes. If all values can have a name each, it is a class, and in
    masks with two values.

    Raises:
        ValueError: if the labels do not fit the names, or there are not 2 to 255 classes.
    """
    texts = join_names([*labels.values()])
    if len(labels) == 1:
        raise ValueError(f"all masks have the value {texts}; at least two values are needed")
    there_are = f"there are {len(labels)} values: {texts}"
    if unknown := set(ignored) - set(labels.values()):
        raise ValueError(f"--ignore {min(unknown)}: no annotation has this value; {there_are}")
    left = {value: label for value, label in labels.items() if label not in ignored}
    if BACKGROUND in labels.values():  # COCO and labelme
        names = list(names or left.values())
        names = names if BACKGROUND in {*names, *ignored} else [BACKGROUND, *names]
        if missing := set(left.values()) - set(names):
            raise ValueError(f"--classes lacks {min(missing)!r}; name it, or add it to --ignore")
        order = {label: names.index(label) for label in left.values()}
    else:
        if IGNORED in left and len(left) > 2:
            others = left.keys() - {IGNORED}
            if not names:
                is_ignored = max(others) <= len(others)
            elif len(names) == len(left):  # they can be the names of all values
                is_ignored = 0 in others and len(others) <= max(others) < len(names)
            else:
                is_ignored = max(others) < len(names)
            if is_ignored:
                del left[IGNORED]
        order = {label: i for i, label in enumerate(left.values())}
        if names and max(left, default=0) < len(names):
            order = {label: value for value, label in left.items()}
        elif names and len(names) != len(left):
            of_classes = f"{len(left)} values{' that are not ignored' * (len(left) < len(labels))}"
            raise ValueError(
                f"--classes names {len(names)} classes, but there are {of_classes}: "
                f"{join_names([*left.values()])}; give one name per value, or --ignore values"
            )
        names = list(names or (f"class_{i}" for i in range(len(left))))
    if not 2 <= len(names) <= IGNORED:
        raise ValueError(
            f"{len(names)} classes, but a project has 2 to {IGNORED}; {there_are}; masks with "
            "smooth edges have too many"
        )
    if wrong := [n for n in names if names.count(n) > 1 or not n.strip()]:
        raise ValueError(f"class {wrong[0]!r}: every class needs a name of its own")
    return names, {label: order.get(label, IGNORED) for label in labels.values()}
