"""The rows of the CamVid table, and the tables of docs/camvid.md."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mmseg_ext.cost.model_cost import markdown


@dataclass(frozen=True)
class Row:
    """A row of a table: a config in `benchmarks/camvid`, with the options that add a head."""

    name: str
    title: str
    config: str
    options: dict = field(default_factory=dict)

    @property
    def is_head(self) -> bool:
        return "model.decode_head" in self.options


def _head(name: str, title: str, kind: str, **options) -> Row:
    return Row(name, title, "_base_/r18-d8", {"model.decode_head": {"type": kind, **options}})


def _backbone(name: str, title: str) -> Row:
    return Row(f"fpn_{name}", title, f"fpn_{name}_camvid_800")


# Twice as wide before its second convolution as after it, as published.
_EA: dict = dict(kind="EAHead", ea_channels=128, memory_size=64)
_JSEG: dict = dict(kind="JSegEAHead", memory_size=256, norm_cfg=None)


GROUPS = {
    "heads": (
        _head("fcn", "FCN", "FCNHead", num_convs=2, concat_input=True),
        _head("psp", "PSP", "PSPHead", pool_scales=(1, 2, 3, 6)),
        _head("danet", "DANet", "DAHead", pam_channels=16),
        _head("ea", "`EAHead`", **_EA),
        _head("ea_jseg", "`JSegEAHead`", **_JSEG),
        _head("danet_ea", "`DANetEAHead`", "DANetEAHead", memory_size=64),
        _head(
            "danet_ea_alone",
            "`DANetEAHead`, no channel attention",
            "DANetEAHead",
            memory_size=64,
            channel_attention=False,
        ),
        _head("masa", "`MaSAHead`, decomposed", "MaSAHead", num_heads=4, decomposed=True),
        _head("masa_full", "`MaSAHead`, full", "MaSAHead", num_heads=4, decomposed=False),
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
        _head("ea_s8", "8 slots", **_EA | dict(memory_size=8)),
        _head("ea_s32", "32 slots", **_EA | dict(memory_size=32)),
        _head("ea_s256", "256 slots", **_EA | dict(memory_size=256)),
        _head("ea_softmax", "softmax over the slots", **_EA, normalization="softmax"),
        _head("ea_tied", "one memory for keys and values", **_EA, tied=True),
        _head(
            "ea_jseg_s64",
            "`JSegEAHead`: 64 slots, 1x1 convolutions",
            **_JSEG | dict(memory_size=64),
        ),
    ),
}


def _with_features(*names: str) -> tuple[Row, ...]:
    """Return rows of the first study on ImageNet features of output stride 8."""
    rows = {row.name: row for group in GROUPS.values() for row in group}
    return tuple(replace(rows[name], config="_base_/efficientnet-d8") for name in names)


@dataclass(frozen=True)
class Study:
    """Rows that are trained by one protocol.

    `frame` is the height and width of the images that the models see in testing. The far part of an
    effective receptive field is beyond `far` pixels, a quarter of the width.
    """

    groups: dict[str, tuple[Row, ...]]
    frame: tuple[int, int]
    far: int

    def rows(self) -> list[Row]:
        """List all rows in the order of the tables."""
        return [row for group in self.groups.values() for row in group]


# By the names of the records in docs/results.
STUDIES = {
    "camvid": Study(GROUPS, (180, 240), 60),
    "camvid_imagenet": Study(
        {
            "heads": _with_features("fcn", "psp", "danet", "ea", "danet_ea", "masa"),
            "ablations": _with_features("ea_s8", "ea_s256", "ea_softmax"),
        },
        (360, 480),
        120,
    ),
}


def of(record: dict, row: Row) -> list[dict]:
    return [r for r in record["runs"] if r["row"] == row.name]


def spread(values: Sequence[float]) -> str:
    """Format the mean, followed by the range if there are several values."""
    if not values:
        return ""
    text = f"{statistics.mean(values):.1f}"
    return text if len(values) == 1 else f"{text} ({min(values):.1f}-{max(values):.1f})"


def against(record: dict, row: Row, other: Row) -> str:
    """Format the mean difference in mIoU from another row's runs with the same seeds."""
    base = {r["seed"]: r["miou"] for r in of(record, other)}
    differences = [r["miou"] - base[r["seed"]] for r in of(record, row) if r["seed"] in base]
    return f"{statistics.mean(differences):+.1f}" if differences and row is not other else ""


SCORES = {
    "mIoU": "miou",
    "pixel accuracy": "accuracy",
    "scales and flips": "miou_views",
    "far part, %": "far",
}
COSTS = {
    "parameters, M": lambda cost: f"{cost['parameters'] / 1e6:.2f}",
    "GMAC": lambda cost: f"{cost['multiply_adds'] / 1e9:.2f}",
    "ms": lambda cost: f"{cost['ms']:.0f}",
    "MiB": lambda cost: f"{cost['mib']:.0f}",
}


_BASE = _head("ea", "`EAHead`: 64 slots, double normalization", **_EA)
# The tables of docs/camvid.md by the names of their markers: record, rows, first heading, others.
_REST = ["far part, %", *COSTS]
_HEADS = ["mIoU", "against FCN", "scales and flips", *_REST]
_SLOTS = ["mIoU", "against `EAHead`", "far part, %"]
_FEATURES = STUDIES["camvid_imagenet"].groups
TABLES = {
    "camvid_heads": ("camvid", GROUPS["heads"], "head", _HEADS),
    "camvid_backbones": (
        "camvid",
        GROUPS["backbones"],
        "backbone",
        ["mIoU", "pixel accuracy", *_REST],
    ),
    "camvid_ablations": ("camvid", (_BASE, *GROUPS["ablations"]), "", _SLOTS),
    "camvid_imagenet_heads": ("camvid_imagenet", _FEATURES["heads"], "head", _HEADS[:-2]),
    "camvid_imagenet_ablations": (
        "camvid_imagenet",
        (_BASE, *_FEATURES["ablations"]),
        "",
        _SLOTS,
    ),
}


def table(name: str, record: dict) -> str:
    """Return the table of the trained rows; "against" columns compare with the first row."""
    _, rows, title, columns = TABLES[name]

    def cell(row: Row, column: str) -> str:
        if column in COSTS:
            cost = record["costs"].get(row.name)
            return COSTS[column](cost) if cost else ""
        if column in SCORES:
            return spread([r[SCORES[column]] for r in of(record, row) if SCORES[column] in r])
        return against(record, row, rows[0])

    lines = [
        [row.title, str(len(of(record, row))), *(cell(row, column) for column in columns)]
        for row in rows
        if of(record, row)
    ]
    return markdown([title, "seeds", *columns], lines)
