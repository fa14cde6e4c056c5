"""What the converters share: whole files or none, published counts, and reading back the result."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from mmseg_ext.atomic_write import atomic_write, write_text
from mmseg_ext.datasets.check.pairs import Pair, Part, Problem, Reading, Split, read_pairs
from mmseg_ext.datasets.files import as_stored
from mmseg_ext.datasets.labels import LabelRule
from mmseg_ext.errors import ConversionError

_SHOWN = 10


def write_whole(path: Path, write: Callable[[Path], object]) -> bool:
    """Have `write` make the file `path`, whole, unless it is there: False then."""
    if path.exists():
        return False
    with atomic_write(path) as part:
        write(part)
    return True


def write_list(path: Path, names: Iterable[str]) -> None:
    """Write one name per line, in order of the alphabet, in place of what the file holds."""
    text = "".join(f"{name}\n" for name in sorted(names))
    if not path.is_file() or path.read_text() != text:
        write_text(text, path)


def read_list(path: Path) -> set[str]:
    """The names in a list of one per line.

    Raises:
        ConversionError: if the file is not there.
    """
    if not path.is_file():
        raise ConversionError(f"{path} is not there")
    return set(path.read_text().split())


def require_counts(
    found: Mapping[str, int], published: Mapping[str, int], allow_partial: bool
) -> None:
    """The splits have their published numbers of images, or `allow_partial` and at least one.

    Raises:
        ConversionError: if not; gives both numbers of each split that differs.
    """
    wrong = [
        f"{split}: {found.get(split, 0)} of {count}"
        for split, count in published.items()
        if found.get(split, 0) != count
    ]
    if wrong and not allow_partial:
        raise ConversionError(
            f"not the published numbers of images: {', '.join(wrong)}; --allow-partial takes a "
            "subset"
        )
    if not any(found.values()):
        raise ConversionError(f"no image of {', '.join(published)}")


def in_parallel(
    function: Callable, items: Sequence, workers: int, title: str, chunk: int = 16
) -> list:
    """`function` of each item, in order, with a progress bar; `workers` = 0 stays here."""
    with _progress() as bar:
        track = bar.track
        if workers == 0:
            return [function(item) for item in track(items, description=title)]
        with ProcessPoolExecutor(workers) as executor:
            results = executor.map(function, items, chunksize=chunk)
            return list(track(results, total=len(items), description=title))


def verify(
    name: str,
    pairs: Sequence[tuple[Path, Path]],
    rule: LabelRule,
    workers: int,
    all_ignored: bool = False,
) -> None:
    """Read every (image, label map) of split `name` as training will.

    Args:
        all_ignored: Label maps without a single counted pixel are in order, as those of a test
            set whose labels are withheld.

    Raises:
        ConversionError: with one line for each of the first files with a problem.
    """
    listed = [Pair(str(image), str(mask), rule) for image, mask in pairs]
    reading = Reading(color_type=as_stored("color"))
    split = Split(name, [Part(listed, reading, classes=(), palette=[])])
    with _progress() as bar:
        task = bar.add_task(f"verifying {name}", total=len(pairs))
        seen = list(read_pairs(split, workers, lambda done: bar.advance(task, done)))
    problems: list[Problem] = [s.problem for s in seen if s.problem is not None]
    if all_ignored:
        problems = [p for p in problems if p.kind != "all-ignored"]
    if problems:
        lines = [str(problem) for problem in problems[:_SHOWN]]
        if len(problems) > _SHOWN:
            lines.append(f"and {len(problems) - _SHOWN} more")
        raise ConversionError(
            "\n".join([*lines, "delete these files and convert them again from a whole archive"])
        )


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(console=console, disable=not console.is_terminal)
