"""torchrun's agent with two forked workers: `elastic.py RESTARTS SCRIPT [ARGUMENTS]`."""

import runpy
import sys

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def worker(words: list[str]) -> None:
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:  # the agent waits for a return
        if end.code:
            raise


if __name__ == "__main__":
    restarts, *words = sys.argv[1:]
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        max_restarts=int(restarts),
        monitor_interval=0.1,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        start_method="fork",
    )
    elastic_launch(config, worker)(words)
