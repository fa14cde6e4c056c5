"""Tabulate what attention blocks and whole heads cost."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from mmseg_ext import register_all_modules
from mmseg_ext.atomic_write import write_text
from mmseg_ext.commands._one_line import one_line
from mmseg_ext.cost.attention_blocks import (
    CROPS,
    attention_blocks,
    criss_cross_attention,
    whole_heads,
)
from mmseg_ext.cost.cost_table import cost_markdown, count_costs, machine, measure_costs
from mmseg_ext.cost.devices import usable_device


@one_line
def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    register_all_modules()
    torch.manual_seed(0)
    usable_device(args.device)
    content, tables = _COMMANDS[args.command](args)
    print(tables, end="")
    if args.markdown is not None:
        write_text(tables, args.markdown)
    if args.json is not None:
        write_text(json.dumps(content, indent=2) + "\n", args.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Parameters, multiply-adds, time and peak memory of attention blocks and heads."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    blocks = commands.add_parser("blocks", help="attention blocks on one feature map")
    heads = commands.add_parser("heads", help="whole decode heads on the crops of three datasets")
    for command in (blocks, heads):
        command.add_argument("--markdown", type=Path, help="also write the table to this file")
        command.add_argument("--json", type=Path, help="write the numbers to this file")
        command.add_argument("--rounds", type=int, default=5, help="calls that a median is over")
        command.add_argument("--device", default="cpu")
        command.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
        command.add_argument("--only", nargs="+", metavar="NAME", help="rows to keep")
        command.add_argument("--time", action="store_true", help="measure inference")
        command.add_argument("--train", action="store_true", help="measure a training step")
    blocks.add_argument("--channels", type=int, default=512)
    blocks.add_argument("--size", type=int, nargs=2, default=(128, 128), metavar=("H", "W"))
    heads.add_argument("--in-channels", type=int, default=2048)
    heads.add_argument("--crops", nargs="+", metavar="NAME", help="VOC, ADE20K, Cityscapes")
    return parser


def _chosen(items: dict, names: Sequence[str] | None) -> dict:
    unknown = [name for name in names or () if name not in items]
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}; there are {', '.join(items)}")
    return {name: item for name, item in items.items() if not names or name in names}


def _header(args: argparse.Namespace) -> dict:
    return {"machine": machine(args.device), "dtype": args.dtype, "rounds": args.rounds}


def _table(args: argparse.Namespace, entries: dict, shape: tuple[int, ...]) -> tuple[dict, str]:
    costs = count_costs(entries, shape)
    how = dict(rounds=args.rounds, device=args.device, dtype=getattr(torch, args.dtype))
    for wanted, training in ((args.time, False), (args.train, True)):
        if wanted:
            measure_costs(costs, entries, shape, training=training, **how)
    title = f"Input {' x '.join(map(str, shape))}\n\n"
    return {"input": shape, "rows": list(map(asdict, costs))}, title + cost_markdown(costs)


def _blocks(args: argparse.Namespace) -> tuple[dict, str]:
    entries = _chosen(attention_blocks(args.channels), args.only)
    table, text = _table(args, entries, (1, args.channels, *args.size))
    if criss_cross_attention() is None:
        text += "\nCriss-cross attention is left out: mmcv is installed without compiled ops.\n"
    return _header(args) | table, text


def _heads(args: argparse.Namespace) -> tuple[dict, str]:
    content, texts = _header(args) | {"crops": {}}, []
    for crop, (size, classes) in _chosen(CROPS, args.crops).items():
        entries = _chosen(whole_heads(classes, args.in_channels), args.only)
        table, text = _table(args, entries, (1, args.in_channels, *size))
        content["crops"][crop] = table
        texts.append(f"{crop}, {classes} classes. {text}")
    return content, "\n".join(texts)


_COMMANDS = {"blocks": _blocks, "heads": _heads}
