"""The rows of the CamVid table, and the tables of docs/camvid.md."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmseg_ext.cost.model_cost import markdown


@dataclass(frozen=True)
class Row:
    """A row of a table: a config with the options of an ablation."""

    name: str
    title: str
    config: str
    options: dict = field(default_factory=dict)


def _head(name: str, title: str) -> Row:
    return Row(name, title, f"{name}_r18_camvid_8k")


def _backbone(name: str, title: str) -> Row:
    return Row(f"fpn_{name}", title, f"fpn_{name}_camvid_8k")


def _ablation(name: str, title: str, **options) -> Row:
    head = {f"model.decode_head.{key}": value for key, value in options.items()}
    return Row(f"ea_{name}", title, "ea_r18_camvid_8k", head)


GROUPS = {
    "heads": (
        _head("fcn", "FCN"),
        _head("psp", "PSP"),
        _head("danet", "DANet"),
        _head("ea", "`EAHead`"),
        _head("ea_jseg", "`JSegEAHead`"),
        _head("danet_ea", "`DANetEAHead`"),
        _head("danet_ea_alone", "`DANetEAHead`, no channel attention"),
        _head("masa", "`MaSAHead`, decomposed"),
        _head("masa_full", "`MaSAHead`, full"),
    ),
    "backbones": (
        _backbone("r18", "ResNet-18"),
        _backbone("lambda", "`LambdaResNet`"),
        _backbone("lambda_hybrid", "`LambdaResNet`, hybrid"),
        _backbone("rmt", "`RMT`"),
        _backbone("deepvit", "`DeepViT`"),
        _backbone("eamlp", "`EAMLP`"),
    ),
    "ablations": (
        _ablation("s8", "8 slots", memory_size=8),
        _ablation("s32", "32 slots", memory_size=32),
        _ablation("s256", "256 slots", memory_size=256),
        _ablation("softmax", "softmax over the slots", normalization="softmax"),
        _ablation("tied", "one memory for keys and values", tied=True),
        Row(
            "ea_jseg_s64",
            "`JSegEAHead`: 64 slots, 1x1 convolutions",
            "ea_jseg_r18_camvid_8k",
            {"model.decode_head.memory_size": 64},
        ),
    ),
}


def all_rows() -> list[Row]:
    """List all rows in the order of the tables."""
    return [row for group in GROUPS.values() for row in group]


def of(record: dict, row: Row) -> list[dict]:
    return [r for r in record["runs"] if r["row"] == row.name]


def spread(values: Sequence[float]) -> str:
    """Format the mean, followed by the range if there are several values."""
    if not values:
        return ""
    text = f"{statistics.mean(values):.1f}"
    return text if len(values) == 1 else f"{text} ({min(values):.1f} to {max(values):.1f})"


def against(record: dict, row: Row, other: Row) -> str:
    """Format the mean difference in mIoU from another row's runs with the same seeds."""
    base = {r["seed"]: r["miou"] for r in of(record, other)}
    differences = [r["miou"] - base[r["seed"]] for r in of(record, row) if r["seed"] in base]
    return f"{statistics.mean(differences):+.1f}" if differences and row is not other else ""


def score_cells(record: dict, row: Row, *keys: str) -> list[str]:
    """Return title, number of seeds and these scores of a row."""
    runs = of(record, row)
    scores = ([r[key] for r in runs if r.get(key) is not None] for key in keys)
    return [row.title, str(len(runs)), *map(spread, scores)]


COSTS = ("parameters, M", "GMAC", "ms", "MiB")


def cost_cells(record: dict, row: Row) -> list[str]:
    cost = record["costs"].get(row.name)
    if cost is None:
        return [""] * 4
    counts = [f"{cost['parameters'] / 1e6:.2f}", f"{cost['multiply_adds'] / 1e9:.2f}"]
    return [*counts, f"{cost['ms']:.0f}", f"{cost['mib']:.0f}"]


def head_table(record: dict) -> str:
    columns = ["head", "seeds", "mIoU", "against FCN", "scales and flips", "far part, %", *COSTS]
    fcn, lines = GROUPS["heads"][0], []
    for row in GROUPS["heads"]:
        if of(record, row):
            *cells, views, far = score_cells(record, row, "miou", "miou_views", "far")
            cells += [against(record, row, fcn), views or "not measured", far]
            lines.append([*cells, *cost_cells(record, row)])
    return markdown(columns, lines)


def backbone_table(record: dict) -> str:
    """Return the table of all backbones with their costs, and scores of the trained ones."""
    columns = ["backbone", "seeds", "mIoU", "pixel accuracy", "far part, %", *COSTS]
    lines = []
    for row in GROUPS["backbones"]:
        title, seeds, miou, *scores = score_cells(record, row, "miou", "accuracy", "far")
        scores = [miou or "not trained", *scores]
        lines.append([title, seeds, *scores, *cost_cells(record, row)])
    return markdown(columns, lines)


def ablation_table(record: dict) -> str:
    """Return the table of ablations compared with `EAHead` of the same seeds."""
    plain = _head("ea", "`EAHead`: 64 slots, double normalization")
    lines = []
    for row in (plain, *GROUPS["ablations"]):
        if of(record, row):
            *cells, far = score_cells(record, row, "miou", "far")
            lines.append([*cells, against(record, row, plain), far])
    return markdown(["", "seeds", "mIoU", "against `EAHead`", "far part, %"], lines)


def by_config(record: dict) -> dict[str, str]:
    """Return the mean mIoU of configs that were trained without options, for the model zoo."""
    trained = {}
    for row in all_rows():
        if not row.options and (runs := of(record, row)):
            mean = statistics.mean(r["miou"] for r in runs)
            trained[row.config] = f"{mean:.1f} after {record['iterations']:,} iterations"
    return trained


TABLES = {
    "camvid_heads": head_table,
    "camvid_backbones": backbone_table,
    "camvid_ablations": ablation_table,
}
"""The tables of docs/camvid.md by the names of their markers."""
