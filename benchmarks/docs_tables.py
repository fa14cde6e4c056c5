"""The docs' tables of configs, costs and results, written from the configs and docs/results.

    python -m benchmarks.docs_tables            write them
    python -m benchmarks.docs_tables --check    change nothing; status 1 where one is out of date
    python -m benchmarks.docs_tables --count    count parameters and multiply-adds again before,
                                                of all configs or of those named

A table stands between `<!-- table NAME -->` and `<!-- end of table -->`. docs/results holds what
cannot be computed: `miou.json`, published results and those of trainings here; `reproduction.json`,
which configs make up a paper's table; `model_zoo.json`, the counts and the measured times and
memory of `mmseg-ext model_cost`; `camvid.json`, what
`benchmarks.camvid_table` trained.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from mmengine.config import Config

from benchmarks import camvid_rows
from mmseg_ext import register_all_modules
from mmseg_ext.cost.model_cost import HEADINGS, Cost, cells, count_config, markdown

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
RESULTS = ROOT / "docs" / "results"
DATASETS = {
    "ade20k": "ADE20K",
    "cityscapes": "Cityscapes",
    "voc": "PASCAL VOC",
    "camvid": "CamVid",
    "shapes": "The embedded dataset",
}
FLOPS = 40e12  # a second: a plausible mean of an A100 in TF32

_TABLE = re.compile(r"(<!-- table (?P<name>\w+) -->\n).*?(\n<!-- end of table -->)", re.S)


def results(name: str) -> dict | list:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def zoo() -> dict[str, Cost]:
    """The counts and measurements on file, by config."""
    return {name: Cost(name, **numbers) for name, numbers in results("model_zoo").items()}


def count(names: Sequence[str]) -> None:
    """Count the parameters and multiply-adds of these configs anew; measured numbers stay."""
    costs = zoo()
    for name in names:
        cost, before = count_config(CONFIGS / f"{name}.py"), costs.get(name)
        if before:
            cost.inference_ms, cost.inference_mib = before.inference_ms, before.inference_mib
        costs[name] = cost
    numbers = {name: asdict(cost) for name, cost in sorted(costs.items())}
    lines = [f"{json.dumps(n.pop('name'))}: {json.dumps(n)}" for n in numbers.values()]
    (RESULTS / "model_zoo.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def training(name: str) -> str:
    """How a config trains: optimizer and rate, GPUs x images, iterations."""
    config = Config.fromfile(CONFIGS / f"{name}.py")
    optimizer = config.optim_wrapper.optimizer
    images = config.train_dataloader.batch_size
    gpus = config.auto_scale_lr.base_batch_size // images
    iterations = config.train_cfg.max_iters
    return f"{optimizer.type} {optimizer.lr:g}, {gpus} x {images}, {iterations:,}"


def zoo_table() -> str:
    """One table for each dataset."""
    miou, costs = results("miou"), zoo()
    trained = miou["trained here"] | camvid_rows.by_config(results("camvid"))
    config, *numbers = HEADINGS
    headings = [config, "published mIoU", "here", *numbers, "training", "source"]
    tables = []
    for key, title in DATASETS.items():
        rows = []
        for name in (name for name in costs if key in name.split("_")):
            published = miou["published"].get(name, {"miou": "none", "source": ""})
            config, *numbers = cells(costs[name])
            miou_cells = [published["miou"], trained.get(name, "not trained")]
            rows.append([config, *miou_cells, *numbers, training(name), published["source"]])
        tables.append(f"## {title}\n\n{markdown(headings, rows)}")
    return "\n".join(tables)


def reproduction_table() -> str:
    costs, published = zoo(), results("miou")["published"]
    rows = []
    for table, names in results("reproduction"):
        for name in names:
            config = Config.fromfile(CONFIGS / f"{name}.py")
            batch = config.auto_scale_lr.base_batch_size
            flops = 6 * costs[name].all_multiply_adds * batch * config.train_cfg.max_iters
            gpus = batch // config.train_dataloader.batch_size
            target = published.get(name, {"miou": "none", "source": ""})
            hours = f"{flops / FLOPS / 3600:.0f}"
            rows.append([table, f"`{name}`", target["miou"], str(gpus), hours, target["source"]])
            table = ""
    headings = ["table", "config", "mIoU to reach", "GPUs", "GPU-hours, estimated", "source"]
    return markdown(headings, rows)


TABLES: dict[str, Callable[[], str]] = {
    "model_zoo": zoo_table,
    "reproduction": reproduction_table,
    **{n: lambda table=t: table(results("camvid")) for n, t in camvid_rows.TABLES.items()},
}


def with_tables(text: str) -> str:
    """A page's text with its tables made anew.

    Raises:
        ValueError: for a marker that names no table.
    """

    def table(match: re.Match) -> str:
        name = match["name"]
        if name not in TABLES:
            raise ValueError(f"there is no table {name!r}, but {', '.join(TABLES)}")
        return f"{match[1]}\n{TABLES[name]()}{match[3]}"

    return _TABLE.sub(table, text)


def outdated() -> dict[Path, str]:
    """The pages whose tables differ from what they should be, with the text that is right."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    right = {page: with_tables(text) for page, text in texts.items()}
    return {page: right[page] for page in pages if right[page] != texts[page]}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, say what differs")
    parser.add_argument("--count", nargs="*", metavar="CONFIG", help="count these anew, or all")
    args = parser.parse_args(argv)
    register_all_modules()
    if args.count is not None:
        count(args.count or [path.stem for path in CONFIGS.glob("*.py")])
    pages = outdated()
    for page, text in pages.items():
        print(f"{page.relative_to(ROOT)}: {'out of date' if args.check else 'written'}")
        if not args.check:
            page.write_text(text, encoding="utf-8")
    return int(args.check and bool(pages))


if __name__ == "__main__":
    sys.exit(main())
