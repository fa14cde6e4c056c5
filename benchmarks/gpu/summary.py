"""Short tables of a result for docs/gpu.md, by stage; the result itself has every row."""

from collections.abc import Callable, Iterable

from benchmarks.gpu.runner import stage_tables
from benchmarks.gpu.stage import Row
from mmseg_ext.cost.model_cost import markdown


def stage_summary(name: str, results: dict) -> str:
    """Return the tables of a stage for the docs."""
    rows = results["stages"][name]["rows"]
    measured = [row for row in rows if not {"failed", "skipped"} & row.keys()]
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


def _layers(rows: list[Row]) -> str:
    left_out = "2-D convolution", "stored weights", "128 x 64 x 64"
    timed = [row for row in rows if "ms" in row and not any(w in str(row) for w in left_out)]
    return pivot(timed, ["layer", "way"], "mode", lambda row: f"{row['ms']} ({row['MiB']})")


def _steps(rows: list[Row]) -> str:
    def cell(row: Row) -> str:
        memory = [str(row[key]) for key in ("peak GiB", "model_cost, GiB") if row[key]]
        return f"{row['images per s']} ({', '.join(memory)})"

    return pivot(rows, ["config"], "variant", cell)


def _parity(rows: list[Row]) -> str:
    """Count the published outputs that agree, by precision, with the largest error."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        kind, _, name = str(row["check"]).partition(": ")
        if kind == "parity":
            found.setdefault(name.rpartition(", ")[2], []).append(row)
    cells = ["published outputs that agree, largest error"]
    for checks in found.values():
        largest = max((str(row["figure"]).split()[1].rstrip(",") for row in checks), key=float)
        good = sum(row["status"] == "ok" for row in checks)
        cells.append(f"{good} of {len(checks)}, {largest}")
    return markdown(["", *found], [cells])


_SHORT = {"strips": _strips, "layers": _layers, "steps": _steps, "parity": _parity}
