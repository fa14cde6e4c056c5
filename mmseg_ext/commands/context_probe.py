"""Probe how far blocks of context carry: effective receptive fields and far cues."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from mmseg_ext.atomic_write import write_text
from mmseg_ext.commands._one_line import one_line
from mmseg_ext.cost.model_cost import machine
from mmseg_ext.inspection.context_probe import BLOCKS, run_probe
from mmseg_ext.inspection.context_report import draw_probe, probe_json, probe_table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="How far blocks of context carry: effective receptive fields and far cues."
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of {', '.join(BLOCKS)}")
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each block (2)")
    parser.add_argument("--steps", type=int, default=300, help="training steps (300)")
    parser.add_argument("--channels", type=int, default=32, help="width (32)")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--plot", type=Path, help="draw to this PNG")
    return parser


@one_line
def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    names = args.only or list(BLOCKS)
    unknown = [name for name in names if name not in BLOCKS]
    if unknown:
        raise ValueError(f"no block {', '.join(unknown)}; there are {list(BLOCKS)}")
    probes = []
    for name in names:
        for seed in range(args.seeds):
            probes.append(run_probe(name, seed, args.steps, channels=args.channels))
            accuracy = ", ".join(f"{d} px {100 * a:.1f}" for d, a in probes[-1].accuracy.items())
            print(f"{name}, seed {seed}: {accuracy}", flush=True)
    table = probe_table(probes)
    print(f"\n{machine()}\n\n{table}", end="")
    if args.markdown is not None:
        write_text(table, args.markdown)
    if args.json is not None:
        write_text(json.dumps(probe_json(probes), indent=1) + "\n", args.json)
    if args.plot is not None:
        draw_probe(probes, args.plot)
    return 0
