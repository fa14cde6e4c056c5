"""Comparisons of two tiny models on two projects: killed and started again, from any folder."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.structures import PixelData
from mmseg.registry import DATASETS
from mmseg.structures import SegDataSample
from PIL import Image

import mmseg_ext
from mmseg_ext import atomic_write, commands
from mmseg_ext.comparison import execute, plan, timing
from mmseg_ext.engine.config import load_config
from mmseg_ext.engine.run_record import describe_data
from mmseg_ext.errors import LaunchError
from mmseg_ext.evaluation.checked_iou_metric import read_images
from mmseg_ext.reports.records import read_records
from tests.datasets.trees import random_image, save
from tests.engine import runs
from tests.engine.runs import ROOT, fails, write_config
from tests.messages import lines_with, raises_message

pytestmark = pytest.mark.slow
HEAD = """
from mmseg.models.decode_heads import FCNHead
from mmseg.registry import MODELS


@MODELS.register_module()
class AuthorsHead(FCNHead):
    pass
"""
OWN = """
custom_imports = dict(imports=["mmseg_ext", "authors_head"], allow_failed_imports=False)
model["decode_head"].update(type="AuthorsHead", channels=8)
"""


class Forked:
    """A command in a process of the test's server, which saves the imports, like a `Popen`."""

    def __init__(self, words, output, env):
        output.parent.mkdir(parents=True, exist_ok=True)
        words = [str(ROOT / "mmseg_ext/__main__.py"), *words]
        env = {**env, "PYTHONPATH": str(ROOT)}
        arguments = (words, Path.cwd(), env, output)
        self.process = runs._SERVER.Process(target=runs._script, args=arguments)
        runs._start(self.process)
        self.output, self.words = output, words

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        if self.returncode is not None:
            parts = [Path(f"{self.output}.{i}") for i in (1, 2)]
            text = "".join(part.read_text() for part in parts if part.exists())
            self.output.write_text(text)
        return self.returncode

    def terminate(self):
        self.process.terminate()

    def wait(self):
        self.process.join()


@pytest.fixture
def _forked(monkeypatch):
    """Start the processes of runs from the server, and measure in this process."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(execute, "start", Forked)
    monkeypatch.setattr(execute, "measure_in_process", lambda paths, env: timing.measure(paths))
    monkeypatch.setattr(timing, "_ROUNDS", 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two configs, one with a head of its author, and two projects of other classes."""
    folder = tmp_path_factory.mktemp("compare")
    write_config(folder, name="fcn.py")
    (folder / "authors_head.py").write_text(HEAD)
    write_config(folder, OWN, name="authors_model.py")
    for number, name in enumerate(("leaves", "cells")):
        for i in range(6):
            random = np.random.RandomState(10 * number + i)
            save(folder / f"{name}_images/{i}.png", random_image(random, (48, 48)))
            save(
                folder / f"{name}_masks/{i}.png", random.randint(0, 2 + number, (48, 48), np.uint8)
            )
        words = [str(folder / name), "--from", "scratch"]
        for kind in ("images", "masks"):
            words += [f"--{kind}", str(folder / f"{name}_{kind}")]
        assert commands.run("new_project", words) == 0
    return folder


def settings(folder: Path, out: Path, **more) -> dict:
    return dict(
        configs=[folder / "fcn.py", folder / "authors_model.py"],
        data=[folder / "leaves", folder / "cells"],
        seeds=[0, 1],
        out=out,
        iterations=4,
        metrics=["mIoU", "boundary"],
        **more,
    )


def notes_of(out: Path) -> list[str]:
    return json.loads((out / "table.json").read_text())["notes"]


def test_a_comparison_that_is_killed_has_the_same_table(folder, tmp_path, monkeypatch, _forked):
    """In a training, in a test, and between both; the other runs go on."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    records = mmseg_ext.compare(**settings(folder, tmp_path / "whole"))
    assert len(records) == 2 * 2 * 3 and not any(record["failed"] for record in records)
    *of_sets, mean = [r["mean"] for r in records if (r["model"], r["metric"]) == ("fcn", "mIoU")]
    assert mean == pytest.approx(np.mean(of_sets))
    again = tmp_path / "again"
    again.mkdir()
    (again / plan.PLAN).write_bytes((tmp_path / "whole" / plan.PLAN).read_bytes())

    started = []

    def killed(words, output, env):
        process = Forked(words, output, env)
        started.append(words)
        if len(started) in (1, 4, 7):
            # The first before it does anything, the others once they have begun a log.
            work_dir = Path(words[words.index("--work-dir") + 1])
            while len(started) > 1 and not any(work_dir.rglob("*.log")) and process.poll() is None:
                time.sleep(0.005)
            process.process.kill()
        return process

    monkeypatch.setattr(execute, "start", killed)
    first = mmseg_ext.compare(**settings(folder, again))
    assert sum(len(r["failed"]) for r in first if r["metric"] == "mIoU") == 3
    monkeypatch.setattr(execute, "start", Forked)
    assert mmseg_ext.compare(**settings(folder, again)) == records
    for name in ("table.csv", "table.json", "table.tex"):
        assert (again / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    page = (again / "table.html").read_text()
    for name in ("table.html", "table.csv", "table.tex", "table.json"):
        assert "mean of 2 sets" in (again / name).read_text()
    assert page.count("data:image/jpeg") >= 2 * (2 + 2)
    assert "authors_model" in page and "authors\\_model" in (again / "table.tex").read_text()
    tests = {run: read_images(run) for run in sorted(again.glob("runs/*/*/*/test/images.npz"))}
    assert [len(images.classes) for images in tests.values()] == 4 * [3] + 4 * [2]
    of_file = json.loads((again / "table.json").read_text())["records"]
    assert [r["mean"] for r in of_file] == [r["mean"] for r in records]
    assert all(record["deviation"] is None for record in records)

    # Complete runs are kept; a further seed trains only itself, here with a changed label map and
    # head.
    assert not any("differ between" in note for note in notes_of(again))
    head = folder / "authors_head.py"
    head.write_text(head.read_text() + "# changed\n")
    label = next((folder / "cells/data/annotations/train").iterdir())
    Image.open(label).save(label, compress_level=0)
    trained = []
    monkeypatch.setattr(execute, "start", lambda w, o, e: trained.append(w[0]) or Forked(w, o, e))
    more = settings(folder, again) | {"seeds": [0, 1, 2], "data": [folder / "cells"]}
    records = mmseg_ext.compare(**more)
    assert trained == ["train", "test"] * 2
    assert records[0]["deviation"] is not None and records[0]["seeds"].keys() == {0, 1, 2}
    changed = [note for note in notes_of(again) if "differ between" in note]
    assert len(changed) == 2 and lines_with("\n".join(changed), "label maps of cells")
    assert lines_with("\n".join(changed), "authors_head.py")


def test_wrong_input_is_one_line_and_trains_nothing(folder, tmp_path, monkeypatch, _forked):
    monkeypatch.setattr(execute, "start", None)
    fcn, leaves, cells = (str(folder / name) for name in ("fcn.py", "leaves", "cells"))
    out = str(tmp_path / "out")
    broken = write_config(folder, "model['decode_head']['in_channels'] = 63\n", "broken.py")
    line = fails("compare", fcn, broken, "--out", out)
    assert lines_with(line, "broken.py", "63")
    line = fails("compare", leaves, f"{cells}/config.py", "--out", out + "2")
    assert lines_with(line, "classes", "--data")
    both = ("--data", leaves, cells, "--out", out + "2")
    line = fails(
        "compare", fcn, "--metrics", "IoU.class_2", *both
    )  # only the cells have this class
    assert lines_with(line, "IoU.class_2", "class_0, class_1")
    line = fails("compare", fcn, "--out", out + ", second")  # --cfg-options would cut the path
    assert lines_with(line, "out, second", "comma", "another name")
    line = fails("compare", fcn, fcn, "--out", out + "2")
    assert lines_with(line, "once")
    line = fails("compare", fcn, "--iterations", "3", "--minutes", "1", "--out", out + "2")
    assert lines_with(line, "one of them")
    for words in (["--minutes", "0"], ["--iterations", "-3"], ["--jobs", "0"]):
        line = fails("compare", fcn, *words, "--out", out + "2")
        assert lines_with(line, " ".join(words), "must be positive")
    no_test = write_config(folder, "test_dataloader = None\n", "no_test.py")
    line = fails("compare", fcn, no_test, "--out", out + "2")
    assert lines_with(line, "no_test.py: has no test_dataloader", "add it")
    no_views = write_config(folder, "del tta_pipeline\n", "no_views.py")
    line = fails("compare", fcn, no_views, "--tta", "--out", out + "2")
    assert lines_with(line, "--tta", "no_views.py", "tta_pipeline")
    unlabeled = "test_dataloader = dict(val_dataloader, dataset=dict(dataset, pipeline="
    splits = {"[load[0], load[2]]": "LoadAnnotations", "load, img_suffix='.x'": "has no images"}
    for pipeline, found in splits.items():
        config = write_config(folder, f"{unlabeled}{pipeline}))\n", "unlabeled.py")
        line = fails("compare", fcn, config, "--out", str(tmp_path / f"out{len(found)}"))
        assert lines_with(line, "unlabeled.py", found) and ": test_dataloader" in line
    epochs = "train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=2)\n"
    by_epochs = write_config(folder, epochs, "by_epochs.py")
    line = fails("compare", fcn, by_epochs, "--iterations", "3", "--out", out + "2")
    assert lines_with(line, "by_epochs.py", "max_iters")


def test_a_folder_of_other_settings_is_not_overwritten(folder, tmp_path, monkeypatch, _forked):
    monkeypatch.setattr(execute, "start", None)
    out, config = tmp_path / "out", write_config(tmp_path, name="own.py")
    words = [str(config), "--out", str(out), "--seeds", "0", "--dry-run"]
    assert commands.run("compare", words) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    original = config.read_bytes()
    assert lines_with(fails("compare", *words, "--iterations", "7"), str(out), "iterations=None")
    assert lines_with(fails("compare", *words, "--metrics", "boundary"), str(out), "counted")
    config.write_text(config.read_text() + "optim_wrapper['optimizer']['lr'] = 0.2\n")
    assert lines_with(fails("compare", *words), "own.py", "--out")
    assert {path: path.read_bytes() for path in before} == before
    line = fails("compare", str(folder / "fcn.py"), "--out", str(folder))
    assert lines_with(line, "other files", "--out")
    # A plan that nothing can be known of: other JSON, a cut file, another version's entries.
    text = before[out / plan.PLAN].decode()
    config.write_bytes(original)
    for damaged in ("3", text[: len(text) // 2], text.replace("counted", "metrics"), "", "{}"):
        (out / plan.PLAN).write_text(damaged)
        assert lines_with(fails("compare", *words), f"{out / plan.PLAN}: ", "--out")
        assert (out / plan.PLAN).read_text() == damaged
    text_of_costs = json.dumps(json.loads(text) | {"costs": [[["d", "m"], [1.0, 2.0]]]})
    (out / plan.PLAN).write_text(text_of_costs)
    assert lines_with(fails("compare", *words), f"{out / plan.PLAN}: ", "--out")
    (out / plan.PLAN).write_text(text)
    assert commands.run("compare", words) == 0
    assert {path: path.read_bytes() for path in before} == before


def test_a_dry_run_prints_a_command_for_each_run(tmp_path, capsys, monkeypatch, _forked):
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")  # with nested loops
    config = write_config(tmp_path, name="own.py")
    words = [str(config), "--seeds", "3", "4", "--rates", "1", "0.5", "--minutes", "1"]
    assert commands.run("compare", [*words, "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " train " in line]
    assert len(lines) == 4 and all(" && OMP_NUM_THREADS=2,1 " in line for line in lines)
    assert all(line.startswith(f"cd {Path.cwd()} && ") and " test " in line for line in lines)
    seconds = json.loads((tmp_path / "out" / plan.PLAN).read_text())["costs"][0][1][0]
    assert all(f"--iterations {round(60 / seconds)} " in line for line in lines)
    assert ["randomness.seed=3" in line for line in lines] == [True, True, False, False]
    assert ["optim_wrapper.optimizer.lr=0.05" in line for line in lines] == [False, True] * 2


def test_a_rate_that_is_chosen_on_the_tested_images_is_told(tmp_path):
    """The images of the config are those of its validation."""
    shuffled = "test_dataloader = dict(val_dataloader, sampler=dict(type='DefaultSampler'))\n"
    config = [str(write_config(tmp_path, shuffled, name="own.py"))]
    notes = plan.make_plan(config, [], [0], tmp_path / "a", rates=[1, 0.5]).notes
    assert lines_with("\n".join(notes), "data: ", "rate", "test split")
    made = plan.make_plan(config, [], [0], tmp_path / "b")
    assert made.notes == []
    (cfg,) = made.configs.values()
    assert not cfg.test_dataloader.sampler.shuffle  # all tests have one order of the images


class Finished:
    """A process that has written the files of its command, and ended."""

    def __init__(self, run: plan.Run, words: list[str]):
        files = [run.checkpoint]
        if words[0] == "test":
            files = run.files("test").values()
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"")

    def poll(self):
        return 0


def some_plan(out: Path, seeds: int) -> plan.Plan:
    """Return the plan of a config `m` on data `d`, whose runs nobody trains."""
    cfg = Config(dict(train_cfg=dict(max_iters=4)))
    cost = timing.Cost(0.001, 1.0, 1.0, 1, 1)
    lists = ["m"], ["d"], [*range(seeds)], [1.0], ["test"], ["mIoU"]
    costs = {("d", "m"): cost}
    return plan.Plan(out, *lists, None, None, 2, {("d", "m"): cfg}, costs, [], out)


def test_objects_of_two_classes_have_scores_of_their_own():
    """mmengine refuses equal names, after all trainings."""
    cfg = load_config("ea_r18_shapes")
    evaluator = Evaluator(plan._evaluators(cfg, ["mIoU", "objects.disc", "objects.ring"]))
    evaluator.dataset_meta = {"classes": plan._classes(cfg)}
    labels = PixelData(data=torch.randint(0, 3, (1, 9, 9)))
    evaluator.process([SegDataSample(gt_sem_seg=labels, pred_sem_seg=labels)], {})
    scores = evaluator.evaluate(1)
    assert scores["objects.disc/F1"] == scores["objects.ring/F1"] == 100


def test_a_time_that_is_too_short_for_an_iteration_is_refused(tmp_path):
    made = some_plan(tmp_path, 1)
    made.minutes = 0.001 / 60  # an iteration takes a millisecond
    with raises_message(LaunchError, "m", where="--minutes ", todo="longer"):
        made.runs  # noqa: B018


def test_a_later_model_is_measured_by_its_ratio_to_the_first(tmp_path, monkeypatch):
    """The machine can be slower than at the first start, whose times stay."""
    made = some_plan(tmp_path, 1)
    made.models.append("n")
    made.configs["d", "n"] = made.configs["d", "m"]
    seen = []

    def measure(files, env):
        seen.append(([file.stem for file in files], env.get("CUDA_VISIBLE_DEVICES")))
        return [timing.Cost(9.0, 1.0, 1.0, 1, 1), timing.Cost(18.0, 2.0, 3.0, 5, 7)]

    monkeypatch.setattr(execute, "measure_in_process", measure)
    for _ in range(2):
        execute.measure_missing(made, "3")
    assert seen == [(["m", "n"], "3")]
    costs = {("d", "m"): [0.001, 1.0, 1.0, 1, 1, 1], ("d", "n"): [0.002, 2.0, 3.0, 5, 7, 1]}
    stored = json.loads((tmp_path / plan.PLAN).read_text())
    assert {tuple(name): cost for name, cost in stored["costs"]} == costs
    assert made.costs == {name: timing.Cost(*cost) for name, cost in costs.items()}


def test_each_gpu_has_one_process_at_a_time_that_sees_no_other(tmp_path, monkeypatch):
    made = some_plan(tmp_path, 5)
    running, seen = set(), []

    class OnGpu(Finished):
        def __init__(self, words, output, env):
            (run,) = [run for run in made.runs if run.folder == output.parent]
            super().__init__(run, words)
            self.gpu, self.polls = env["CUDA_VISIBLE_DEVICES"], 0
            assert self.gpu not in running and env["OMP_NUM_THREADS"] == "2"
            running.add(self.gpu)
            seen.append((run.seed, words[0], self.gpu))

        def poll(self):
            self.polls += 1
            if self.polls < 3:
                return None
            running.discard(self.gpu)
            return 0

    monkeypatch.setattr(execute, "start", OnGpu)
    monkeypatch.setattr(execute.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(execute.torch.cuda, "device_count", lambda: 4)
    assert execute.cards_of([3]) == ["3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.setattr(execute.torch.cuda, "device_count", lambda: 3)
    assert execute.execute(made, jobs=7, gpus=execute.cards_of([2, 0])) == {}
    assert {gpu for _, _, gpu in seen} == {"6", "4"}
    cards = {seed: {gpu for one, _, gpu in seen if one == seed} for seed in range(5)}
    assert all(len(cards[seed]) == 1 for seed in range(5))  # training and test on one card
    assert sorted(seen)[:2] == [(0, "test", "6"), (0, "train", "6")]
    with raises_message(LaunchError, where="--gpus 3: ", todo="0 to 2"):
        execute.cards_of([3])
    with pytest.raises(LaunchError, match="each one once"):
        execute.cards_of([1, 1])
    monkeypatch.setattr(execute.torch.cuda, "device_count", lambda: 0)
    with raises_message(LaunchError, 0, where="--gpus 0: ", todo="leave out"):
        execute.cards_of([0])


@pytest.mark.parametrize("step", ["train", "test"])
def test_a_write_error_costs_one_run(tmp_path, monkeypatch, capsys, step):
    """Of the comparison itself, which writes the output of the processes."""
    made = some_plan(tmp_path, 3)

    def start(words, output, env):
        (run,) = [run for run in made.runs if run.folder == output.parent]
        if run.seed == 1 and words[0] == step:
            raise OSError(errno.ENOSPC, "No space left on device", str(output))
        return Finished(run, words)

    monkeypatch.setattr(execute, "start", start)
    monkeypatch.setattr(execute.time, "sleep", lambda seconds: None)
    failed = execute.execute(made)
    assert {run.seed for run in failed} == {1}
    assert lines_with(failed[made.runs[1]], "output.txt", "No space left")
    assert [run.has_test("test") for run in made.runs] == [True, False, True]
    assert "seed 1: failed" in capsys.readouterr().out


def test_the_time_left_follows_the_pace_of_a_run(tmp_path, monkeypatch):
    """It was resumed at iteration 2, and took ten seconds for the next one of four."""
    made, now = some_plan(tmp_path, 1), [0.0]
    monkeypatch.setattr(execute.time, "monotonic", lambda: now[0])
    log = made.runs[0].folder / "20260131_235959/vis_data/scalars.json"
    log.parent.mkdir(parents=True)
    log.write_text('{"loss": 1.0, "step": 1}\n{"loss": 1.0, "step": 2}\n')
    job = execute._Job(made.runs[0], made)
    job.expected = 6.0
    job.start(None)
    now[0] = 4.0
    assert job.left(1.0) == 2.0 and job.left(2.0) == 8.0  # as expected, or twice as long
    now[0] = 10.0
    assert job.left(1.0) == 0.0
    with log.open("a") as file:
        file.write('{"loss": 1.0, "step": 3}\n')
    assert job.left(1.0) == 10.0


def test_a_training_that_a_signal_stops_is_not_complete(tmp_path, monkeypatch):
    """It ends with status 0, and is not started again by the same comparison."""
    made, started = some_plan(tmp_path, 2), []

    class Stopped:
        def __init__(self, words, output, env):
            started.append(words[0])

        def poll(self):
            return 0

    monkeypatch.setattr(execute, "start", Stopped)
    monkeypatch.setattr(execute.time, "sleep", lambda seconds: None)
    failed = execute.execute(made)
    assert len(failed) == 2 and started == ["train"] * 2
    assert all(lines_with(error, "stopped", "start") for error in failed.values())


def test_a_table_that_cannot_be_written_is_printed(folder, tmp_path, monkeypatch, capsys, _forked):
    """One line says why, and the complete runs stay."""
    words = ["compare", str(folder / "fcn.py"), "--seeds", "0", "--iterations", "2"]
    out = tmp_path / "my out"
    words += ["--data", str(folder / "cells"), "--out", str(out)]
    sync = atomic_write._sync

    def full(path):
        if path.suffix == ".tex":
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(path)

    with monkeypatch.context() as patch:
        patch.setattr(atomic_write, "_sync", full)
        assert commands.run(words[0], words[1:]) == 1
    printed, error = capsys.readouterr()
    assert "| fcn, mIoU |" in printed and lines_with(error, "table.tex", "No space left")
    assert {path.name for path in out.glob("*table*")} == {"table.html"}  # and no part of another
    monkeypatch.setattr(execute, "start", None)
    assert commands.run(words[0], words[1:]) == 0
    complete = (out / "table.tex").read_bytes()
    with monkeypatch.context() as patch:  # a table that is there stays
        patch.setattr(atomic_write, "_sync", full)
        assert commands.run(words[0], words[1:]) == 1
    assert (out / "table.tex").read_bytes() == complete


def test_relative_paths_lead_from_the_first_folder(folder, tmp_path, monkeypatch, _forked):
    """Stopped in a training, again, and complete; the second folder has other images."""
    loop = "train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=2)\n"
    extra = f"dataset['data_root'] = 'data'\n{loop}del param_scheduler\n"
    extra += "train_dataloader.update(batch_size=3, sampler=dict(type='DefaultSampler'))\n"
    extra += "default_hooks['checkpoint'] = dict(interval=1)\n"
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        config = write_config(tmp_path / name, extra)
    for image in (tmp_path / "second/data/images").iterdir():
        save(image, np.zeros((32, 32, 3), np.uint8))
    words = [str(config), "--seeds", "0", "--out"]

    class Killed(Forked):
        def __init__(self, words, output, env):
            super().__init__(words, output, env)
            while not any(output.parent.rglob("*.log")) and self.poll() is None:
                time.sleep(0.005)
            self.process.kill()

    monkeypatch.chdir(tmp_path / "first")
    with monkeypatch.context() as patch:
        patch.setattr(execute, "start", Killed)
        assert commands.run("compare", [*words, "out"]) == 1
    monkeypatch.chdir(tmp_path / "second")
    monkeypatch.setattr(execute, "start", Forked)
    assert commands.run("compare", [*words, "../first/out"]) == 0
    assert Path.cwd() == tmp_path / "second"
    monkeypatch.setattr(execute, "start", None)
    monkeypatch.chdir(tmp_path)
    assert commands.run("compare", [*words, "first/out"]) == 0
    assert [*tmp_path.glob("*/out")] == [tmp_path / "first/out"]
    (record,) = json.loads((tmp_path / "first/out/table.json").read_text())["records"]
    assert record["iterations"] == 6  # two epochs of three batches
    monkeypatch.chdir(tmp_path / "first")
    data = describe_data(DATASETS.build(load_config(str(config)).train_dataloader.dataset))
    starts = read_records(next(Path("out/runs").glob("*/*/*"))).values()
    assert {start["training_data"] for start in starts} == {data}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_time_with_its_processes(folder, tmp_path, seed):
    """The process of the comparison is killed, and the kernel kills those of its runs."""
    words = [str(folder / "fcn.py"), str(folder / "authors_model.py"), "--seeds", "0"]
    words += ["--data", str(folder / "leaves"), "--iterations", "40"]
    program = [sys.executable, "-m", "mmseg_ext", "compare", *words, "--out"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    once, again = tmp_path / "once", tmp_path / "again"
    subprocess.run([*program, str(once)], env=env, check=True, cwd=tmp_path)
    again.mkdir()
    (again / plan.PLAN).write_bytes((once / plan.PLAN).read_bytes())
    random = np.random.RandomState(seed)
    for _ in range(4):
        process = subprocess.Popen([*program, str(again)], env=env, cwd=tmp_path)
        time.sleep(random.uniform(5, 40))
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run([*program, str(again)], env=env, check=True, cwd=tmp_path)
    for name in ("table.csv", "table.json", "table.tex"):
        assert (again / name).read_bytes() == (once / name).read_bytes()
