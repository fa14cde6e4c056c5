"""The rows of the CamVid table, and the tables that docs/camvid.md shows of their results."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmseg_ext.cost.model_cost import markdown


@dataclass(frozen=True)
class Row:
    """A row of a table: a config, and the options that an ablation changes in it."""

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

_WEIGHTS = "model.decode_head.loss_decode.class_weight"
_RATE = "optim_wrapper.optimizer.lr"
_CLIP = "optim_wrapper.clip_grad"
_TRAIN, _TEST = "train_dataloader.dataset.pipeline", "test_dataloader.dataset.pipeline"
_LOG = [0.982, 0.811, 2.283, 0.668, 1.744, 1.302, 2.245, 2.254, 1.599, 2.356, 2.435]
_ROOT = [0.88, 0.75, 3.63, 0.64, 1.70, 1.15, 3.32, 3.39, 1.49, 4.50, 6.66]
_INVERSE = [0.27, 0.19, 4.56, 0.14, 1.0, 0.46, 3.81, 3.98, 0.77, 7.01, 15.35]
_OHEM = dict(type="OHEMPixelSampler", thresh=0.7, min_kept=6000)
_SGD = dict(_delete_=True, type="SGD", lr=0.05, momentum=0.9, weight_decay=0.0005)
_NARROW = {"model.decode_head.concat_input": False}
_FLOAT32 = {_RATE: 2e-3, "optim_wrapper.type": "OptimWrapper", **_NARROW}
_WIDE = {
    "model.backbone.base_channels": 32,
    "model.backbone.stem_channels": 32,
    "model.decode_head.in_channels": 256,
}
_WHOLE = {
    f"{_TRAIN}.2.scale": (480, 360),
    f"{_TRAIN}.2.ratio_range": (0.5, 1.25),
    f"{_TEST}.1.scale": (480, 360),
}


def _recipe(name: str, title: str, weights: list[float] | None, options: dict) -> Row:
    return Row(f"recipe_{name}", title, "fcn_r18_camvid_8k", {_WEIGHTS: weights, **options})


# Tried before the protocol was frozen. "Alone": without `concat_input`.
RECIPE = (
    _recipe("plain", "no weights, rate 0.002, float32, alone", None, _FLOAT32),
    _recipe(
        "ohem",
        "OHEM, rate 0.002, float32, alone",
        None,
        {"model.decode_head.sampler": _OHEM, **_FLOAT32},
    ),
    _recipe("log", "weights 1 / log(1.1 + share), rate 0.002, float32, alone", _LOG, _FLOAT32),
    _recipe("rate2", "weights share^-1/2, rate 0.002, alone", _ROOT, {_RATE: 2e-3, **_NARROW}),
    _recipe("rate6", "weights share^-1/2, alone", _ROOT, _NARROW),
    _recipe("rate12", "weights share^-1/2, rate 0.012", _ROOT, {_RATE: 12e-3}),
    _recipe("root", "weights share^-1/2", _ROOT, {}),
    _recipe("inverse", "weights share^-1", _INVERSE, {}),
    _recipe(
        "unclipped", "weights share^-1/2, rate 0.01, no clipping", _ROOT, {_RATE: 1e-2, _CLIP: None}
    ),
    _recipe(
        "sgd",
        "weights share^-1/2, SGD of rate 0.05, no clipping",
        _ROOT,
        {"optim_wrapper.optimizer": _SGD, _CLIP: None},
    ),
    _recipe("whole", "weights share^-1/2, images of 480x360", _ROOT, _WHOLE),
    _recipe(
        "pairs", "weights share^-1/2, batches of two", _ROOT, {"train_dataloader.batch_size": 2}
    ),
    _recipe("wide", "weights share^-1/2, base width 32", _ROOT, _WIDE),
    Row("fcn", "weights share^-3/4: the protocol", "fcn_r18_camvid_8k"),
    Row("recipe_fpn_r18_fast", "FPN on ResNet-18, rate 0.006", "fpn_r18_camvid_8k", {_RATE: 6e-3}),
    Row("fpn_r18", "FPN on ResNet-18, rate 0.0015", "fpn_r18_camvid_8k"),
    Row(
        "recipe_fpn_deepvit_fast",
        "FPN on DeepViT, rate 0.006",
        "fpn_deepvit_camvid_8k",
        {_RATE: 6e-3},
    ),
    Row("fpn_deepvit", "FPN on DeepViT, rate 0.0015", "fpn_deepvit_camvid_8k"),
)


def rows_of(group: str) -> Sequence[Row]:
    return RECIPE if group == "recipe" else GROUPS[group]


def all_rows() -> list[Row]:
    """The rows under the protocol, in the order of the tables."""
    return [row for group in GROUPS.values() for row in group]


# --- the tables ---------------------------------------------------------------------------------


def of(record: dict, row: Row) -> list[dict]:
    return [r for r in record["runs"] if r["row"] == row.name]


def spread(values: Sequence[float]) -> str:
    """The mean, and behind it the lowest and the highest of several."""
    if not values:
        return ""
    text = f"{statistics.mean(values):.1f}"
    return text if len(values) == 1 else f"{text} ({min(values):.1f} to {max(values):.1f})"


def against(record: dict, row: Row, other: Row) -> str:
    """The mean difference in mIoU from another row's runs of the same seeds."""
    base = {r["seed"]: r["miou"] for r in of(record, other)}
    differences = [r["miou"] - base[r["seed"]] for r in of(record, row) if r["seed"] in base]
    return f"{statistics.mean(differences):+.1f}" if differences else ""


def head_table(record: dict) -> str:
    columns = ["head", "seeds", "mIoU", "against FCN", "scales and flips", "far part, %"]
    columns += ["parameters, M", "GMAC", "ms", "MiB"]
    fcn, lines = GROUPS["heads"][0], []
    for row in GROUPS["heads"]:
        if runs := of(record, row):
            views = [r["miou_views"] for r in runs if r.get("miou_views") is not None]
            lines.append(
                [
                    row.title,
                    str(len(runs)),
                    spread([r["miou"] for r in runs]),
                    "" if row is fcn else against(record, row, fcn),
                    spread(views) or "not measured",
                    spread([r["far"] for r in runs]),
                    *cost_cells(record, row),
                ]
            )
    return markdown(columns, lines)


def cost_cells(record: dict, row: Row) -> list[str]:
    cost = record["costs"].get(row.name)
    if cost is None:
        return [""] * 4
    return [
        f"{cost['parameters'] / 1e6:.2f}",
        f"{cost['multiply_adds'] / 1e9:.2f}",
        f"{cost['ms']:.0f}",
        f"{cost['mib']:.0f}",
    ]


def class_table(record: dict) -> str:
    """IoU of each class, mean over the seeds."""
    rows = [(row, runs) for row in GROUPS["heads"] if (runs := of(record, row))]
    classes = list(rows[0][1][0]["iou"]) if rows else []
    lines = []
    for row, runs in rows:
        means = [statistics.mean(r["iou"][c] for r in runs) for c in classes]
        lines.append([row.title, *(f"{value:.1f}" for value in means)])
    return markdown(["head", *classes], lines)


def backbone_table(record: dict) -> str:
    """All backbones, for what they cost, the trained ones with their scores."""
    columns = ["backbone", "seeds", "mIoU", "pixel accuracy", "far part, %"]
    columns += ["parameters, M", "GMAC", "ms", "MiB"]
    lines = []
    for row in GROUPS["backbones"]:
        runs = of(record, row)
        scores = [spread([r[key] for r in runs]) for key in ("miou", "accuracy", "far")]
        if not runs:
            scores = ["not trained", "", ""]
        lines.append([row.title, str(len(runs)), *scores, *cost_cells(record, row)])
    return markdown(columns, lines)


def ablation_table(record: dict) -> str:
    """Each change beside `EAHead` of the same seeds."""
    plain = next(row for row in GROUPS["heads"] if row.name == "ea")
    lines = []
    for row in (plain, *GROUPS["ablations"]):
        if runs := of(record, row):
            title = "`EAHead`: 64 slots, double normalisation" if row is plain else row.title
            difference = "" if row is plain else against(record, row, plain)
            scores = [spread([r[key] for r in runs]) for key in ("miou", "far")]
            lines.append([title, str(len(runs)), scores[0], difference, scores[1]])
    return markdown(["", "seeds", "mIoU", "against `EAHead`", "far part, %"], lines)


def by_config(record: dict) -> dict[str, str]:
    """For the table of all configs: the mean mIoU of those that were trained as they stand."""
    trained = {}
    for row in all_rows():
        if not row.options and (runs := of(record, row)):
            mean = statistics.mean(r["miou"] for r in runs)
            trained[row.config] = f"{mean:.1f} after {record['iterations']:,} iterations"
    return trained


def recipe_table(record: dict) -> str:
    """What was tried on FCN, and what was taken."""
    tried = {numbers["row"]: numbers for numbers in record["recipe"]}
    lines = []
    for row in RECIPE:
        if numbers := tried.get(row.name):
            missed = (
                ", ".join(name for name, value in numbers["iou"].items() if value < 1) or "none"
            )
            scores = [f"{numbers['miou']:.1f}", f"{numbers['accuracy']:.1f}", missed]
            lines.append([row.title, f"{numbers['iterations']:,}", *scores])
    columns = ["recipe", "iterations", "mIoU", "pixel accuracy", "classes with an IoU below 1"]
    return markdown(columns, lines)


TABLES = {
    "camvid_recipe": recipe_table,
    "camvid_heads": head_table,
    "camvid_classes": class_table,
    "camvid_backbones": backbone_table,
    "camvid_ablations": ablation_table,
}
"""What docs/camvid.md shows of docs/results/camvid.json, by the names of the markers there."""
