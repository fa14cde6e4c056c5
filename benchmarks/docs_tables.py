"""Write the tables of the docs from the configs and docs/results.

    python -m benchmarks.docs_tables            write them
    python -m benchmarks.docs_tables --count    first count parameters and multiply-adds of all
                                                configs, or of those named

A table is between `<!-- table NAME -->` and `<!-- end of table -->`. docs/results contains what
takes long or cannot be computed: `miou.json`, published results and our own; `reproduction.json`,
the configs of each table in the papers; `model_zoo.json`, counts; `memory.json`, the memory of
training steps and the plans for several GPUs, computed by version 1.0.0, which simulated a GPU;
`camvid.json` and `camvid_imagenet.json`, the heads and backbones that version 1.0.0 trained on
CamVid; `gpu.json`, runs of `benchmarks.gpu`.
"""

import argparse
import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmengine.config import Config

from benchmarks.gpu.summary import hours, stage_summary
from mmseg_ext import register_all_modules
from mmseg_ext.cost.model_cost import Cost, cells, count_config, markdown

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
RESULTS = ROOT / "docs" / "results"
# The sources of published scores in the table of all configs, by their first word.
_SOURCES = {"arXiv": "paper", "Jittor/JSeg's": "JSeg", "mmsegmentation's": "mmseg"}
DATASETS = {
    "ade20k": "ADE20K",
    "cityscapes": "Cityscapes",
    "voc": "PASCAL VOC",
    "camvid": "CamVid",
    "nuclei": "Nuclei",
    "shapes": "The embedded dataset",
}
# One config of each protocol, for the plans.
PROTOCOLS = {
    "ea_r101_voc_45k": "VOC, EANet's protocol",
    "ea_r101_ade20k_160k": "ADE20K, SGD",
    "fpn_rmt_small_ade20k_80k": "ADE20K, Semantic FPN",
    "upernet_rmt_small_ade20k_160k": "ADE20K, AdamW",
    "ea_r101_cityscapes_80k": "Cityscapes 769x769",
    "upernet_rmt_small_cityscapes_80k": "Cityscapes 512x1024",
}
GPUS = (1, 2, 4, 8, 16)  # of the stored plans
GIBI = 2**30
FLOPS = 40e12  # per second: a plausible mean of an A100 with TF32

_TABLE = re.compile(r"(<!-- table (?P<name>\w+) -->).*?(<!-- end of table -->)", re.S)


def results(name: str) -> dict | list:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def zoo() -> dict[str, Cost]:
    """Return the stored counts by config."""
    return {name: Cost(**numbers) for name, numbers in results("model_zoo").items()}


def write_results(name: str, values: dict) -> None:
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(values.items())]
    (RESULTS / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def count(names: Sequence[str]) -> None:
    """Count the parameters and multiply-adds of these configs and store them."""
    costs = zoo() | {name: count_config(CONFIGS / f"{name}.py") for name in names}
    write_results("model_zoo", {name: asdict(cost) for name, cost in costs.items()})


def gibibytes(name: str) -> str:
    """Return the memory of a training step in float32 / in mixed precision; empty if unknown."""
    both = results("memory").get(name)
    if both is None:
        return ""
    sizes = (both[key]["total"] / GIBI for key in ("float32", "amp"))
    return " / ".join(f"{size:.1f}" if size >= 1 else f"{size:.2f}" for size in sizes)


def backbone_start(config: Config) -> str:
    """Return what the backbone's weights are at the start of training."""
    if config.get("load_from"):
        return f"`{Path(config.load_from).parent.name}`"
    checkpoint = (config.model.backbone.get("init_cfg") or {}).get("checkpoint")
    checkpoint = checkpoint or config.model.get("pretrained")
    if checkpoint is None:
        return "random"
    return "ImageNet" if "://" in checkpoint else "converted"


def plans_table() -> str:
    """Return GiB per GPU, float32 / AMP (images): bold without options, italic if not exact."""
    rows = []
    for name, protocol in PROTOCOLS.items():
        found = results("memory")[f"{name}, plans"]
        cells, accumulated = [], []
        for plan, memories, _ in found:
            sizes = " / ".join(f"{memory / GIBI:.1f}" for memory in memories)
            cell = f"{sizes} ({plan['images']})"
            if plan["accumulation"] > 1:
                accumulated.append(cell)
            elif not plan["options"]:
                cells.append(f"**{cell}**")
            else:
                cells.append(cell if plan["exact"] else f"*{cell}*")
        (checkpoint,) = {size for *_, size in found}
        rows.append([protocol, *cells, accumulated[0], f"{checkpoint / GIBI:.1f}"])
    headings = ["protocol", "1 GPU", *(f"{gpus} GPUs" for gpus in GPUS[1:])]
    return markdown([*headings, "1 GPU, accumulated", "GiB, checkpoint"], rows)


def training(config: Config) -> str:
    """Return GPUs x images, and iterations of a config's training."""
    images = config.train_dataloader.batch_size
    gpus = config.auto_scale_lr.base_batch_size // images
    return f"{gpus}x{images}, {config.train_cfg.max_iters:,}"


def published(name: str) -> tuple[str, str]:
    """Return a config's published mIoU and its source."""
    found = results("miou")["published"].get(name, {"miou": "none", "source": ""})
    return found["miou"], found["source"]


def zoo_table() -> str:
    """Return one table for each dataset."""
    costs = zoo()
    trained = results("miou")["trained here"]
    headings = ["config", "mIoU", "parameters, M", "GMAC", "GiB", "backbone", "training"]
    tables = []
    for key, dataset in DATASETS.items():
        rows = []
        for name in (name for name in costs if key in name.split("_")):
            title, crop, parameters, _, multiply_adds = cells(name, costs[name])
            miou, source = published(name)
            score = f"{miou} ({_SOURCES[source.split()[0]]})" if source else trained.get(name, "")
            config = Config.fromfile(CONFIGS / f"{name}.py")
            numbers = [score, parameters, multiply_adds, gibibytes(name), backbone_start(config)]
            rows.append([title, *numbers, f"{crop}, {training(config)}"])
        tables.append(f"## {dataset}\n\n{markdown(headings, rows)}")
    return "\n".join(tables)


def reproduction_table() -> str:
    """Return the configs of each table in the papers; a group names its source once."""
    rows, costs = [], zoo()
    for table, names in results("reproduction"):
        source = "; ".join({published(name)[1]: None for name in names if published(name)[1]})
        for name in names:
            config = Config.fromfile(CONFIGS / f"{name}.py")
            batch = config.auto_scale_lr.base_batch_size
            flops = 6 * costs[name].all_multiply_adds * batch * config.train_cfg.max_iters
            gpus = batch // config.train_dataloader.batch_size
            hours = f"{flops / FLOPS / 3600:.0f} ({gpus})"
            rows.append([table, f"`{name}`", published(name)[0], hours, source])
            table = source = ""
    headings = ["table", "config", "mIoU to reach", "GPU-hours (GPUs)", "source"]
    return markdown(headings, rows)


# The titles of the recorded rows, and the tables: record, first heading, columns, rows.
CAMVID_TITLES = {
    "fcn": "FCN",
    "psp": "PSP",
    "danet": "DANet",
    "ea": "`EAHead`",
    "ea_jseg": "`JSegEAHead`",
    "danet_ea": "`DANetEAHead`",
    "danet_ea_alone": "`DANetEAHead`, no channel attention",
    "masa": "`MaSAHead`, decomposed",
    "masa_full": "`MaSAHead`, full",
    "fpn_r18": "ResNet-18",
    "fpn_lambda": "`LambdaResNet`",
    "fpn_lambda_hybrid": "`LambdaResNet`, hybrid",
    "fpn_rmt": "`RMT`",
    "fpn_deepvit": "`DeepViT`",
    "fpn_eamlp": "`EAMLP`",
    "ea_s8": "8 slots",
    "ea_s32": "32 slots",
    "ea_s256": "256 slots",
    "ea_softmax": "softmax over the slots",
    "ea_tied": "one memory for keys and values",
    "ea_jseg_s64": "`JSegEAHead`: 64 slots, 1x1 convolutions",
}
_COSTS = ["parameters, M", "GMAC", "ms"]
_HEADS = ["mIoU", "against FCN", "far part, %"]
_SLOTS = ["mIoU", "against `EAHead`", "far part, %"]
CAMVID_TABLES = {
    "camvid_heads": (
        "camvid",
        "head",
        _HEADS + _COSTS,
        "fcn psp danet ea ea_jseg danet_ea danet_ea_alone masa masa_full",
    ),
    "camvid_backbones": (
        "camvid",
        "backbone",
        ["mIoU", "far part, %", *_COSTS],
        "fpn_r18 fpn_lambda fpn_lambda_hybrid fpn_rmt fpn_deepvit fpn_eamlp",
    ),
    "camvid_ablations": (
        "camvid",
        "",
        _SLOTS,
        "ea ea_s8 ea_s32 ea_s256 ea_softmax ea_tied ea_jseg_s64",
    ),
    "camvid_imagenet_heads": (
        "camvid_imagenet",
        "head",
        _HEADS + _COSTS[:2],
        "fcn psp danet ea danet_ea masa",
    ),
    "camvid_imagenet_ablations": ("camvid_imagenet", "", _SLOTS, "ea ea_s8 ea_s256 ea_softmax"),
}


def camvid_table(name: str) -> str:
    """Return a table of recorded runs; "against" columns compare with the first row."""
    file, heading, columns, names = CAMVID_TABLES[name]
    record: Any = results(file)
    scores = {"mIoU": "miou", "far part, %": "far"}
    of_rows: dict[str, list[dict]] = {row: [] for row in names.split()}
    for run in record["runs"]:
        if run["row"] in of_rows:
            of_rows[run["row"]].append(run)
    first, *_ = of_rows
    base = {run["seed"]: run["miou"] for run in of_rows[first]}
    lines = []
    for row, runs in of_rows.items():
        title = CAMVID_TITLES[row]
        if heading == "" and row == "ea":
            title += ": 64 slots, double normalization"
        line = [title]
        for column in columns:
            values: list[float] = []
            if column in scores:
                values = [run[scores[column]] for run in runs if scores[column] in run]
                line.append(f"{statistics.mean(values):.1f}" if values else "")
                if len(values) > 1:
                    line[-1] += f" ({min(values):.1f}-{max(values):.1f})"
            elif column in _COSTS:
                cost = record["costs"].get(row)
                line.append("" if cost is None else _camvid_cost(cost)[column])
            else:
                values = [run["miou"] - base[run["seed"]] for run in runs if run["seed"] in base]
                line.append(f"{statistics.mean(values):+.1f}" if values and row != first else "")
        lines.append(line)
    return markdown([heading, *columns], lines)


def _camvid_cost(cost: dict) -> dict[str, str]:
    return {
        "parameters, M": f"{cost['parameters'] / 1e6:.2f}",
        "GMAC": f"{cost['multiply_adds'] / 1e9:.2f}",
        "ms": f"{cost.get('ms', 0):.0f}",
    }


TABLES: dict[str, Callable[[], str]] = {
    "model_zoo": zoo_table,
    "reproduction": reproduction_table,
    "plans": plans_table,
    **{name: lambda name=name: camvid_table(name) for name in CAMVID_TABLES},
    "gpu_variants": lambda: stage_summary("variants", results("gpu")),
    "gpu_hours": lambda: hours(results("gpu")),
}


def outdated() -> dict[Path, str]:
    """Return the pages with outdated tables, and their current text."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    right = {
        page: _TABLE.sub(lambda match: f"{match[1]}\n\n{TABLES[match['name']]()}\n{match[3]}", text)
        for page, text in texts.items()
    }
    return {page: right[page] for page in pages if right[page] != texts[page]}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", nargs="*", metavar="CONFIG", help="count these first, or all")
    args = parser.parse_args(argv)
    register_all_modules()
    every = [path.stem for path in CONFIGS.glob("*.py")]
    if args.count is not None:
        count(args.count or every)
    for page, text in outdated().items():
        page.write_text(text, encoding="utf-8")
        print(f"{page.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()
