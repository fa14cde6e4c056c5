"""Several trainings in one process equal trainings in a process each."""

import os
from pathlib import Path

import torch
from mmengine.hooks import Hook
from mmengine.logging import MessageHub, MMLogger
from mmengine.visualization import Visualizer

from mmseg_ext.commands import prepare_stack
from mmseg_ext.engine.build import build_train_runner
from mmseg_ext.reports.run_data import read_curves
from tests.durable.curve_model import CONFIG
from tests.engine.runs import in_server, log_text
from tests.engine.states import assert_same, logged
from tests.messages import lines_with

# All have the same name, and a visualizer as those of mmsegmentation's configs.
NAMED = "visualizer = dict(type='Visualizer', name='visualizer', vis_backends=[dict(type=B)])\n"
NAMED = NAMED.replace("B", "'LocalVisBackend'")
RUNS = {
    "deterministic": "randomness = dict(seed=1, deterministic=True)\n",
    "fast": "env_cfg = dict(cudnn_benchmark=True)\noptim_wrapper['accumulative_counts'] = 1\n",
    "average": "runner_type = 'Runner'\ncustom_hooks = [dict(type='EMAHook', momentum=0.1)]\n",
}


class StateOfProcess(Hook):
    """Keep what the process has while a run trains."""

    def before_train(self, runner):
        cudnn = torch.backends.cudnn
        exact = torch.are_deterministic_algorithms_enabled()
        variables = [name for name in os.environ if name.endswith(("_CONFIG", "_DETERMINISTIC"))]
        self.found = [cudnn.benchmark, cudnn.deterministic, exact, sorted(variables)]
        for kind, own in (
            (MMLogger, runner.logger),
            (MessageHub, runner.message_hub),
            (Visualizer, runner.visualizer),
        ):
            assert kind.get_current_instance() is own


def train_runs(folder: Path, names: list[str]) -> list:
    """Train in this process, one after the other."""
    prepare_stack()  # as commands do; mmsegmentation's own packages need it
    hooks = []
    for name in names:
        runner = build_train_runner(str(folder / name / "curve.py"), None, str(folder / name))
        hooks.append(StateOfProcess())
        runner.register_hook(hooks[-1])
        runner.train()
    return [hook.found for hook in hooks]


def write_runs(folder: Path) -> Path:
    for name, text in RUNS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "curve.py").write_text(CONFIG + NAMED + text)
    return folder


def test_trainings_in_one_process_equal_one_each(tmp_path):
    """Bit by bit, with different settings; the same names and the same second."""
    alone, shared = write_runs(tmp_path / "alone"), write_runs(tmp_path / "shared")
    expected = [in_server(train_runs, alone, [name])[0] for name in RUNS]
    assert in_server(train_runs, shared, list(RUNS)) == expected
    assert expected[0][:3] == [False, True, True] and expected[1][:3] == [True, False, False]
    for name in RUNS:
        ours, theirs = (
            torch.load(folder / name / "iter_6.pth", weights_only=name != "average")
            for folder in (alone, shared)
        )
        for key in ("state_dict", "optimizer", "param_schedulers"):
            assert assert_same(ours[key], theirs[key], key) > 0
        assert logged(alone / name) == logged(shared / name) and len(logged(shared / name)) == 6
        assert log_text(shared / name).count("Iter(train)") == 6
        assert len(read_curves(shared / name, [])["loss"]) == 6


def test_a_run_that_trains_after_the_next_one_is_built_is_told(tmp_path):
    folder = write_runs(tmp_path)
    first, second = (
        build_train_runner(str(folder / name / "curve.py"), None, str(folder / name))
        for name in ("fast", "average")
    )
    second.train()
    assert not lines_with(log_text(folder / "average"), "another run")
    first.train()
    assert lines_with(log_text(folder / "fast"), "another run", "before you build")
