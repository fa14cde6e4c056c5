"""A run that is stopped at any of its file operations loses nothing, and neither do other runs.

Each test asks a process of the server in `runs`, which forks the runs, so none pays for imports.
"""

import functools
import os
import re
import shutil
import time
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from mmengine.runner import runner as mmengine_runner
from mmengine.visualization import Visualizer

from mmseg_ext.engine import run_record  # git is asked once for all runs
from tests.durable.curve_model import CONFIG, SCHEDULES
from tests.durable.stops import (
    FOREIGN,
    STOPPED,
    checkpoints,
    differences,
    frozen,
    named_as_removed,
    start,
    state,
)
from tests.engine.runs import in_server

SPELLINGS = ["default", "relative", "absolute", "linked"]  # of a work directory
# The statuses of a stop; the second ones only before the run locks its folder.
STATUSES = {"raise": [STOPPED], "kill": [-9], "term": [0, -15], "interrupt": [0, 1]}


def _fast_stack() -> None:
    """Compute once what is the same in all runs."""
    environment, commit = mmengine_runner.collect_env(), run_record.git_commit()
    mmengine_runner.collect_env = lambda: environment
    mmengine_runner.get_git_hash = run_record.git_commit = lambda: commit
    figure = Visualizer()._initialize_fig({})
    Visualizer._initialize_fig = lambda *_: figure
    time.sleep = lambda seconds: None  # mmengine waits after each pass over a dataset


class Folder:
    """A folder with a config, a run that is tested, and in `neighbor` a finished run.

    The run is in the default work directory until `work` changes; `spelling` is how commands name
    it: 'default', 'relative', 'absolute' or 'linked'.
    """

    spelling, max_iters = "default", 6

    def __init__(self, root: Path, schedule: str, neighbor: Path | None = None):
        self.root, self.schedule, self.cwd = root, schedule, root
        self.seen: set[str] = set()  # checkpoints of the run
        self.saved_between = False  # by a stop signal, so other checkpoints are kept
        root.mkdir(parents=True)
        self.work = root / "work_dirs/curve"
        self.saved = root / "out/curve" if schedule == "out_dir" else self.work
        # Both exist, so every first run of a schedule has the same operations.
        self.saved.mkdir(parents=True)
        self.work.mkdir(parents=True, exist_ok=True)
        if schedule == "changed best":  # since a first training, which all others resume
            (root / "curve.py").write_text(CONFIG)
            start(root, [*self.words(True), "train_cfg.max_iters=3"], root)
        (root / "curve.py").write_text(CONFIG + SCHEDULES[schedule])
        self.others = {}
        if neighbor is not None:
            shutil.copytree(neighbor, root / "work_dirs/neighbor")
            shutil.copy(min(neighbor.glob("*_*.pth")), self.saved / FOREIGN)
            self.freeze()

    def freeze(self) -> None:
        """Note the state of the other runs."""
        self.others = frozen(self.root, self.root / "work_dirs/neighbor", self.saved / FOREIGN)

    def words(self, resume: bool) -> list[str]:
        work = os.path.relpath(self.work, self.cwd)
        if self.spelling == "absolute":
            work = str(self.work)
        if self.spelling == "linked":
            link = self.root / "link"
            link.unlink(missing_ok=True)
            link.symlink_to(self.work.parent)
            work = str(link / self.work.name)
        resume |= self.schedule == "changed best"
        words = [os.path.relpath(self.root / "curve.py", self.cwd), *["--resume"] * resume]
        words += [] if self.spelling == "default" else ["--work-dir", work]
        if self.schedule == "epochs":  # of two iterations
            return [*words, "--cfg-options", f"train_cfg.max_epochs={self.max_iters // 2}"]
        return [*words, "--cfg-options", f"train_cfg.max_iters={self.max_iters}"]

    def train(self, resume: bool, at: int | None = None, how: str = "raise") -> tuple:
        """Return the status of a training that stops at operation `at`, and its operations."""
        self.saved_between |= how in ("term", "interrupt")
        status, operations = start(self.cwd, self.words(resume), self.root, at, how)
        self.seen |= checkpoints(self.saved)
        return status, operations

    def finish(self, expected: dict) -> list[str]:
        """Resume to the end; return in which ways the run differs from an expected `state`."""
        status, operations = self.train(resume=True)
        if status != 0:
            return [f"status {status}: {operations}"]
        removed = (Path(path).name for event, path in operations if event == "os.remove")
        self.seen |= {name for name in removed if name.endswith(".pth") and name[0] != "."}
        now = frozen(self.root, self.root / "work_dirs/neighbor", self.saved / FOREIGN)
        different = differences(state(self.work, self.saved), expected)
        if self.saved_between:
            other = re.compile(rf"\.iter_(?!{self.max_iters}\.)|.*\.(keep_ckpt_ids|last_ckpt):")
            different = [line for line in different if not other.match(line)]
        problems = {
            "different": different,
            "no line in the log": self.seen - checkpoints(self.saved) - named_as_removed(self.work),
            "unfinished": [path.name for path in self.root.rglob(".*.part*")],
            "changed": [path for path, before in self.others.items() if now.get(path) != before],
        }
        return [f"{problem}: {what}" for problem, what in problems.items() if what]


def _reference(root: Path, schedule: str, max_iters: int = 6) -> tuple[Folder, list]:
    """Return the folder of an uninterrupted run, and the file operations of the run."""
    folder = Folder(root, schedule)
    folder.max_iters = max_iters
    status, operations = folder.train(resume=False)
    assert status == 0, operations
    return folder, operations


def _stop_everywhere(
    root: Path, schedule: str, spelling: str, share: tuple[int, int], twice: bool = False
) -> tuple[int, list[str]]:
    """Stop a schedule at each operation of this `share`; return their number, and what was wrong.

    With `twice`, every other run stops a second time while it resumes.
    """
    _fast_stack()
    reference, operations = _reference(root / "reference", schedule)
    expected, problems = state(reference.work, reference.saved), []
    stops = range(share[0], len(operations), share[1])
    locked = [path.endswith(".training") for _, path in operations].index(True)
    for at in stops:
        how = [*STATUSES][at // share[1] % len(STATUSES)] if spelling == "absolute" else "raise"
        folder = Folder(root / str(at), schedule, reference.saved)
        folder.spelling = spelling
        status, _ = folder.train(resume=False, at=at, how=how)
        usual = STATUSES[how][: 1 if at >= locked else None]
        found = [] if status in usual else [f"status {status}"]
        if twice and at % 2:
            folder.train(resume=True, at=at * 7 % 40, how="kill" if at % 4 == 1 else "raise")
        found += folder.finish(expected) or folder.finish(expected)  # also after the end
        problems += [f"{at} {how} {' '.join(operations[at])}: {text}"[:2000] for text in found]
        shutil.rmtree(folder.root)
    return len(stops), problems


# `make test` stops a run at every third operation, and `make test-long` at the others.
SHARES = [("default", "default", 0, 3), ("epochs", "absolute", 0, 8)]
SHARES += [("changed best", "absolute", 0, 7)]
LONG = [("default", "default", 1, 3), ("default", "default", 2, 3), ("default", "absolute", 0, 2)]
SHARES += [pytest.param(*share, marks=pytest.mark.long) for share in LONG]


@pytest.mark.parametrize(("schedule", "spelling", "first", "step"), SHARES)
def test_a_stop_at_any_operation_loses_nothing(tmp_path, schedule, spelling, first, step):
    """At each operation with the default work directory, and at a part with an absolute one."""
    count, problems = in_server(_stop_everywhere, tmp_path, schedule, spelling, (first, step))
    operations = 60 if schedule == "changed best" else 90
    assert problems == [] and count > operations // step


@pytest.mark.long
@pytest.mark.parametrize("spelling", SPELLINGS[:3:2])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stops_in_all_schedules(tmp_path, schedule, spelling):
    share = (spelling == "absolute", 2)
    count, problems = in_server(_stop_everywhere, tmp_path, schedule, spelling, share, True)
    print(f"{schedule}, {spelling}: {count} stops")
    assert problems == [] and count > 20


class Life(RuleBasedStateMachine):
    """What happens to a work directory: stops, resumes, copies, moves and other spellings."""

    root: Path
    schedules: list[str]
    count = 0

    def __init__(self):
        super().__init__()
        Life.count += 1
        self.originals: list[tuple[Path, dict]] = []  # folders that were copied

    @initialize(data=st.data(), at=st.none() | st.integers(0, 90), how=st.sampled_from([*STATUSES]))
    def train(self, data, at, how):
        schedule = data.draw(st.sampled_from(self.schedules))
        neighbor = self.reference(schedule, 6).work
        self.folder = Folder(self.root / f"life{Life.count}", schedule, neighbor)
        self.finished = self.folder.train(resume=False, at=at, how=how)[0] == 0 and at is None

    @classmethod
    @functools.cache
    def reference(cls, schedule: str, max_iters: int) -> Folder:
        return _reference(cls.root / f"{schedule} {max_iters}", schedule, max_iters)[0]

    @rule(at=st.integers(0, 70), how=st.sampled_from([*STATUSES]))
    def resume_and_stop(self, at, how):
        self.folder.train(resume=True, at=at, how=how)

    @rule()
    def resume(self):
        same = self.reference(self.folder.schedule, self.folder.max_iters)
        problems = self.folder.finish(state(same.work, same.saved))
        assert not problems, (self.folder.schedule, problems)
        self.finished = True

    @precondition(lambda self: self.finished and self.folder.max_iters < 18)
    @precondition(lambda self: self.folder.schedule not in ("rare", "last"))
    @rule()
    def train_longer(self):
        """Not if only the end of a run has a checkpoint there: a longer run has others."""
        self.folder.max_iters += 6
        self.finished = False

    def _change_root(self, root: Path) -> None:
        before, self.folder.root = self.folder.root, root
        for name in ("work", "saved", "cwd"):
            setattr(self.folder, name, root / getattr(self.folder, name).relative_to(before))
        self.folder.freeze()

    @rule(keep_times=st.booleans())
    def copy(self, keep_times):
        before, root = self.folder.root, Path(f"{self.folder.root}c")
        copy = shutil.copy2 if keep_times else shutil.copy
        shutil.copytree(before, root, symlinks=True, copy_function=copy)
        self.originals.append((before, frozen(before, before)))
        self._change_root(root)

    @rule()
    def move(self):
        root = Path(f"{self.folder.root}m")
        self.folder.root.rename(root)
        self._change_root(root)

    @rule(name=st.sampled_from(["a", "b", "work_dirs/curve"]))
    def rename_work_dir(self, name):
        new = self.folder.root / name
        if not new.exists() and self.folder.work.exists():
            self.folder.work.rename(new)
            self.folder.work = self.folder.saved = new
            self.folder.freeze()
            self.spell("relative", self.folder.cwd != self.folder.root)

    @rule(spelling=st.sampled_from(SPELLINGS), inside=st.booleans())
    def spell(self, spelling, inside):
        """Name the work directory in another way, from another current directory."""
        self.folder.cwd = self.folder.root / "inside" if inside else self.folder.root
        self.folder.cwd.mkdir(exist_ok=True)
        default = self.folder.cwd / "work_dirs/curve" == self.folder.work
        self.folder.spelling = spelling if default or spelling != "default" else "relative"

    def teardown(self):
        self.resume()
        self.resume()
        for root, before in self.originals:
            assert frozen(root, root) == before
            shutil.rmtree(root)
        shutil.rmtree(self.folder.root)


def _live(root: Path, seed: int, examples: int, schedules: list[str]) -> None:
    _fast_stack()
    Life.root, Life.schedules = root, schedules
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=6,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],  # to shorten a failing sequence takes minutes
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(hypothesis.seed(seed)(Life), settings=settings)


EXAMPLES = [(0, 25), (1, 25), *((seed, 50) for seed in range(10, 20))]


@pytest.mark.long
@pytest.mark.parametrize(("seed", "examples"), EXAMPLES)
def test_a_work_directory_survives_random_sequences(tmp_path, seed, examples):
    """In every other schedule; the relative 'out_dir' depends on the current directory."""
    schedules = [name for name in SCHEDULES if name != "out_dir"][seed % 2 :: 2]
    in_server(_live, tmp_path, seed, examples, schedules)
