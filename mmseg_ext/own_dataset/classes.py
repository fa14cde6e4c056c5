"""The classes of a project for your own images, from the values that its annotations have.

A label is a value: a number, and the text that a user knows, such as 17 and "17", or 0xC80A0A and
"#c80a0a". Labels of COCO and labelme are names, numbered from the background on. Each text gets a
class, or 255 if its pixels are ignored. Further runs keep the class of each text.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from mmseg_ext.errors import join_names
from mmseg_ext.own_dataset.annotations.annotation import BACKGROUND

IGNORED = 255
_VOID = ("void", "ignore", "ignored", "__ignore__")  # names of what does not count


def update_classes(
    before: Mapping[str, Any] | None,
    labels: Mapping[int, str],
    names: Sequence[str] | None = None,
    ignored: Sequence[str] = (),
    listed: Mapping[str, str] | None = None,
) -> tuple[list[str], dict[str, int], list[str]]:
    """Return classes and labels as `assign_classes`, if an earlier run had others, and notes.

    A label keeps its class, which `names` can rename. A new label gets a class at the end, or the
    one with its name, which can be `listed`. A class without a label stays.

    Raises:
        ValueError: as `assign_classes`, and if no label is known.
    """
    if before is None:
        classes, of_text = assign_classes(labels, names, ignored)
        notes = []
        if not names:
            notes = _note_on_255(labels, of_text)
        return classes, of_text, notes
    known: dict[str, int] = before["labels"]
    texts = labels.values()
    if not known.keys() & set(texts):
        raise ValueError(
            f"this project has the values {join_names(list(known))}, but the annotations have "
            f"{join_names(list(texts))}; delete its folder, or write to another one"
        )
    gone = [text for text, i in known.items() if text not in texts and i != IGNORED]
    needless = known.keys() - set(texts) - set(gone)  # was ignored before, and is gone
    ignored = [text for text in ignored if text not in needless]
    every = _with_gone(labels, gone, in_order=bool(listed) or BACKGROUND in texts)
    try:
        own, assigned = assign_classes(every, names, ignored)
    except ValueError:  # perhaps `names` are those of the labels that are left
        own, assigned = assign_classes(labels, names, ignored)
    # 255 can be ignored without a flag.
    by_name = [text for text, i in assigned.items() if i == IGNORED and text != str(IGNORED)]
    ignored += by_name
    classes, of_text = list(before["classes"]), dict(known)
    notes = [f"no annotation has {t} now; its class {classes[known[t]]} stays" for t in gone]
    new = []
    for text, i in assigned.items():
        old = known.get(text, IGNORED)
        if text in ignored and old != IGNORED:
            notes.append(f"{text} is ignored now; its class {classes[old]} stays")
        if i == IGNORED or (text in known and not names):
            of_text[text] = IGNORED if text in ignored else old
        elif old == IGNORED:
            new.append(text)
        elif classes[old] != own[i]:
            notes.append(f"class {classes[old]} is called {own[i]} now")
            classes[old] = own[i]
    given = listed or {}
    if names or BACKGROUND in assigned:
        given = {text: own[assigned[text]] for text in new}
    notes += _add_new(new, classes, of_text, given)
    if names:
        classes += [name for name in own if name not in classes]
    for name in classes:
        if classes.count(name) > 1:
            raise ValueError(f"class {name!r}: an earlier run has this name for another value")
    return classes, of_text, notes


def _add_new(
    new: Sequence[str], classes: list[str], of_text: dict[str, int], given: Mapping[str, str]
) -> list[str]:
    """Add new labels, and the classes that these lack, with their `given` names; return notes."""
    notes = []
    for text in new:
        name = given.get(text, f"class_{len(classes)}")
        if name not in classes or text not in given:
            notes.append(f"{text} is new: {name} is class {len(classes)}")
            classes.append(name)
        of_text[text] = classes.index(name)
    return notes


def _note_on_255(labels: Mapping[int, str], of_text: Mapping[str, int]) -> list[str]:
    """Return a note if 255 is a class, but is far from other values, as in a part of VOC."""
    steps = np.diff(sorted(labels))
    is_last = max(labels) == IGNORED and len(steps) > 1
    is_far = is_last and steps[-1] > 2 * max(steps[:-1])
    if not is_far or of_text.get("255", IGNORED) == IGNORED:
        return []
    return ["255 is a class; if it is to be ignored, start a new project with --ignore 255"]


def _with_gone(labels: Mapping[int, str], gone: Sequence[str], in_order: bool) -> dict[int, str]:
    """Return all labels, with those that only earlier runs had at the end, or by their values."""
    every = dict(labels)
    for text in gone:
        number = max(every) + 1 if in_order else int(text.replace("#", "0x"), 0)
        every[number] = text
    return dict(sorted(every.items()))


def follow_file(
    labels: Mapping[int, str],
    listed: Mapping[str, str],
    known: Collection[str],
    names: Sequence[str] | None,
    ignored: Sequence[str],
) -> tuple[Mapping[int, str], Sequence[str] | None, list[str]]:
    """Return labels in the order of a file with names, the names, and the ignored texts.

    The file gives the texts `listed` their names. Without other `names` a new project has all
    these classes but void, and texts that are not listed are ignored. `names` of colors, which have
    no order, are in the order of the file, or the file's own names in another order. `known` texts
    of an earlier run stay.
    """
    of_name = {name: text for text, name in listed.items()}
    ignored = [of_name.get(text, text) for text in ignored]
    present = labels.values()
    if names and not any(text.startswith("#") for text in present):
        return labels, names, ignored
    order = [text for text in listed if not known or text in known or text in present]
    if names and set(names) <= of_name.keys():
        order = [of_name[name] for name in names]
        names = [name for name in names if of_name[name] not in ignored]
    order += [text for text in present if text not in order]
    if not names:
        new = [text for text in order if text not in known]
        void = [text for text in new if listed.get(text, "").lower() in _VOID]
        if len(listed) - len(void) > 1:  # void and one class are two classes
            ignored += void
        ignored += [text for text in new if text not in listed]
        if not known:
            names = [listed[text] for text in order if text not in ignored]
    return dict(enumerate(order)), names, ignored


def assign_classes(
    labels: Mapping[int, str], names: Sequence[str] | None = None, ignored: Collection[str] = ()
) -> tuple[list[str], dict[str, int]]:
    """Return the classes, and the class of each label; 255 for ignored labels.

    The value 255 of masks is ignored if the other values are 0, 1, 2, ..., of which one can be
    missing, or numbers of named classes. If all values can have a name each, it is a class, and in
    masks with two values.

    Raises:
        ValueError: if the labels do not fit the names, or there are not 2 to 255 classes.
    """
    texts = list(labels.values())
    if len(labels) == 1:
        raise ValueError(f"all masks have the value {texts[0]}; at least two values are needed")
    there_are = f"there are {len(labels)} values: {join_names(texts)}"
    ignored = set(ignored)
    named = ignored.difference(texts)  # by a name of `names`
    unknown = named.difference(names or ())
    if unknown:
        raise ValueError(f"--ignore {min(unknown)}: no annotation has this value; {there_are}")
    left = {number: text for number, text in labels.items() if text not in ignored}
    if BACKGROUND in texts:  # COCO and labelme
        classes, of_text = _assign_names(list(left.values()), names, ignored)
    else:
        classes, of_text = _assign_numbers(left, names, len(labels))
    kept = [name for name in classes if name not in named]
    if named:
        numbers = [kept.index(name) if name in kept else IGNORED for name in classes]
        classes, of_text = kept, {text: numbers[i] for text, i in of_text.items()}
    if not 2 <= len(classes) <= IGNORED:
        raise ValueError(
            f"{len(classes)} classes, but a project has 2 to {IGNORED}; {there_are}; masks with "
            "smooth edges have too many"
        )
    for name in classes:
        if classes.count(name) > 1 or not name.strip():
            raise ValueError(f"class {name!r}: every class needs a name of its own")
    return classes, dict.fromkeys(texts, IGNORED) | of_text


def _assign_names(
    texts: Sequence[str], names: Sequence[str] | None, ignored: Collection[str]
) -> tuple[list[str], dict[str, int]]:
    """Return the classes and the class of each label, if labels are names."""
    classes = list(names or texts)
    if BACKGROUND not in (*classes, *ignored):
        classes.insert(0, BACKGROUND)
    missing = set(texts) - set(classes)
    if missing:
        raise ValueError(f"--classes lacks {min(missing)!r}; name it, or add it to --ignore")
    return classes, dict(zip(texts, map(classes.index, texts), strict=True))


def _assign_numbers(
    labels: Mapping[int, str], names: Sequence[str] | None, count: int
) -> tuple[list[str], dict[str, int]]:
    """Return the classes and the class of each label, if labels are numbers or colors.

    `count` is the number of labels with those that flags ignore.
    """
    left = dict(labels)
    if _is_255_ignored(left, names):
        del left[IGNORED]
    texts = list(left.values())
    in_order = dict(zip(texts, range(len(texts)), strict=True))
    if not names:
        return [f"class_{i}" for i in in_order.values()], in_order
    if max(left, default=0) < len(names):  # the values are the numbers of the classes
        return list(names), dict(zip(texts, left, strict=True))
    if len(names) != len(left):
        values = f"{len(left)} values"
        if len(left) < count:
            values += " that are not ignored"
        raise ValueError(
            f"--classes names {len(names)} classes, but there are {values}: {join_names(texts)}; "
            "give one name per value, or --ignore values"
        )
    return list(names), in_order


def _is_255_ignored(labels: Mapping[int, str], names: Sequence[str] | None) -> bool:
    if IGNORED not in labels or len(labels) < 3:
        return False
    others = labels.keys() - {IGNORED}
    if not names:  # 0, 1, 2, ..., of which one can be missing
        return max(others) <= len(others)
    if len(names) == len(labels):  # they can be the names of all values
        return 0 in others and len(others) <= max(others) < len(names)
    return max(others) < len(names)
