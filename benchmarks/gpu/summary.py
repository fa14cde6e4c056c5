"""Short tables of a result for docs/gpu.md, by stage; the result itself has every row."""

from collections.abc import Callable, Iterable

from benchmarks.gpu.runner import stage_tables
from benchmarks.gpu.stage import Row
from mmseg_ext.cost.model_cost import markdown
from mmseg_ext.engine.config import load_config

RATE = "images per s"  # a row that fails later has it


def stage_summary(name: str, results: dict) -> str:
    """Return the tables of a stage for the docs."""
    rows = results["stages"][name]["rows"]
    measured = [row for row in rows if not {"failed", "skipped"} & row.keys() or RATE in row]
    return _SHORT[name](measured) if name in _SHORT else stage_tables(rows)


def pivot(rows: Iterable[Row], index: list[str], over: str, cell: Callable[[Row], str]) -> str:
    """Return a table with a row for each value of `index` and a column for each value of `over`."""
    cells: dict[tuple, dict] = {}
    columns: dict[object, None] = {}
    for row in rows:
        columns[row[over]] = None
        cells.setdefault(tuple(str(row[key]) for key in index), {})[row[over]] = cell(row)
    lines = [[*key, *(found.get(column, "") for column in columns)] for key, found in cells.items()]
    return markdown([*index, *map(str, columns)], lines)


def _strips(rows: list[Row]) -> str:
    stock = {row["case"]: f"{row['stock, ms']} ({row['stock, MiB']})" for row in rows}
    named = [{**row, "stock: ms (MiB)": stock[row["case"]]} for row in rows]
    return pivot(
        [{**row, "strips": f"strips of {row['strips of MiB']} MiB"} for row in named],
        ["case", "stock: ms (MiB)"],
        "strips",
        lambda row: f"{row['strips, ms']} ({row['strips, MiB']})",
    )


def _kind(row: Row) -> str:
    """Return the column of a variant in the short table, empty if it is in none."""
    options = {*str(row["options"]).split()}
    started = "graph or compiled" if options & {"graph", "compile"} else "default"
    plain = options - {"stock", "untuned"} <= {"nhwc", "merged", "fused", "graph", "compile"}
    if not options:
        return "before"
    if options == {"stock"}:
        return "stock, before"
    if not plain:
        return ""
    return f"stock, {started}" if "stock" in options else started


def _rate(row: Row) -> float:
    return float(str(row[RATE]))


def _fastest(rows: Iterable[Row]) -> dict[tuple, dict[str, Row]]:
    """Return the fastest variant of each column, by config, precision and batch."""
    found: dict[tuple, dict[str, Row]] = {}
    for row in rows:
        kind = _kind(row) if RATE in row else ""
        if kind:
            key = row["config"], row["precision"], row["batch"]
            best = found.setdefault(key, {})
            best[kind] = max(best.get(kind, row), row, key=_rate)
    return found


_KINDS = ("before", "default", "graph or compiled")
_KINDS += tuple(f"stock, {kind}" for kind in _KINDS)


def _variants(rows: list[Row]) -> str:
    """Return images per second, and the part of the card's peak, of the fastest options."""

    def cell(row: Row | None) -> str:
        return "" if row is None else f"{row[RATE]} ({row['of the peak']})"

    fastest = _fastest(rows)
    kinds = _measured_kinds(fastest.values())
    lines = []
    for key, best in fastest.items():
        lines.append([*map(str, key), *(cell(best.get(kind)) for kind in kinds)])
    return markdown(["config", "precision", "images", *kinds], lines)


def _measured_kinds(fastest: Iterable[dict]) -> list[str]:
    """Return the kinds of variants that have a row."""
    found = {kind for best in fastest for kind in best}
    return [kind for kind in _KINDS if kind in found]


def hours(results: dict) -> str:
    """Return the hours of each measured schedule without validation, at its fastest batch size."""
    rates: dict[str, dict[str, float]] = {}
    for (name, *_), best in _fastest(results["stages"]["variants"]["rows"]).items():
        found = rates.setdefault(str(name), {})
        for kind, row in best.items():
            found[kind] = max(found.get(kind, 0), _rate(row))
    kinds = _measured_kinds(rates.values())
    lines = []
    for name, found in rates.items():
        config = load_config(name)
        images = config.train_cfg.max_iters * config.auto_scale_lr.base_batch_size
        times = [f"{images / found[kind] / 3600:.1f}" if kind in found else "" for kind in kinds]
        lines.append([name, f"{images / 1e6:.2f}", *times])
    return markdown(["config", "million images", *kinds], lines)


_SHORT = {"strips": _strips, "variants": _variants}
