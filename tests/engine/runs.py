"""Runs of a few seconds: images, a config, and the tools as a user starts them."""

import contextlib
import importlib
import io
import multiprocessing
import os
import runpy
import shutil
import socket
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
from mmengine.runner import Runner
from PIL import Image

from mmseg_ext.commands import report_error
from mmseg_ext.commands.train import arguments, parser
from mmseg_ext.commands.train import main as train  # its errors, not its exit status
from mmseg_ext.engine.build import build_train_runner
from tests.configs import CONFIGS

ROOT = CONFIGS.parent
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE")  # environment variables of a process


def write_images(root: Path) -> None:
    """Write eight noisy images, whose three classes differ in brightness, and their label maps."""
    random = np.random.RandomState(0)
    for folder in ("images", "labels"):
        (root / folder).mkdir(parents=True)
    for i in range(8):
        coarse = random.randint(0, 3, (4, 4))
        label = np.kron(coarse, np.ones((8, 8))).astype(np.uint8)
        image = label[..., None] * 80 + random.randint(0, 80, (32, 32, 3))
        Image.fromarray(label).save(root / "labels" / f"{i}.png")
        Image.fromarray(image.astype(np.uint8)).save(root / "images" / f"{i}.png")


_CONFIG = """
_base_ = [{base!r}]
custom_imports = dict(imports=["mmseg_ext", "tests.engine.run_hooks"], allow_failed_imports=False)
norm_cfg = dict(type="GN", num_groups=4)
model = dict(
    type="StripEncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor", mean=[120.0] * 3, std=[60.0] * 3, bgr_to_rgb=True,
        size=(32, 32),
    ),
    backbone=dict(
        type="ResNetV1c", depth=18, base_channels=8, stem_channels=8, out_indices=(3,),
        norm_cfg=norm_cfg,
    ),
    decode_head=dict(
        type="FCNHead", in_channels=64, channels=16, num_convs=1, concat_input=False,
        in_index=0, dropout_ratio=0, num_classes=3, norm_cfg=norm_cfg,
        align_corners=False,
    ),
    test_cfg=dict(mode="whole"),
)
load = [dict(type="LoadImageFromFile"), dict(type="LoadAnnotations"), dict(type="PackSegInputs")]
dataset = dict(
    type="BaseSegDataset", data_root={data!r}, img_suffix=".png", pipeline=load,
    data_prefix=dict(img_path="images", seg_map_path="labels"),
    metainfo=dict(classes=("a", "b", "c"), palette=[[0, 0, 0], [255, 0, 0], [0, 255, 0]]),
)
train_dataloader = dict(
    batch_size=4, num_workers=0, sampler=dict(type="InfiniteSampler", shuffle=False),
    dataset=dataset,
)
val_dataloader = dict(
    batch_size=1, num_workers=0, sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dataset,
)
test_dataloader = val_dataloader
val_evaluator = dict(type="IoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator
flips = [dict(type="RandomFlip", prob=p, direction="horizontal") for p in (0.0, 1.0)]
sizes = [dict(type="Resize", scale_factor=s, keep_ratio=True) for s in (1.0, 1.5)]
tta_pipeline = [load[0], dict(type="TestTimeAug", transforms=[sizes, flips, load[1:2], load[2:]])]
optim_wrapper = dict(
    type="OptimWrapper", optimizer=dict(type="SGD", lr=0.1, momentum=0.9, weight_decay=1e-4)
)
param_scheduler = [dict(type="PolyLR", power=0.9, eta_min=0.0, begin=0, end=12, by_epoch=False)]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=12, val_interval=100)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
default_hooks = dict(checkpoint=dict(interval=4), logger=dict(interval=1))
env_cfg = dict(cudnn_benchmark=False)
visualizer = dict(vis_backends=[dict(type="LocalVisBackend")])
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=4)
"""


def write_config(folder: Path, extra: str = "", name: str = "tiny.py") -> Path:
    """Write a config that trains a small FCN on images in `folder/data`, ending with `extra`."""
    if not (folder / "data").exists():
        write_images(folder / "data")
    base, path = str(CONFIGS / "_base_/default_runtime.py"), folder / name
    path.write_text(_CONFIG.format(base=base, data=str(folder / "data")) + extra)
    return path


def copy_tree(source: Path, target: Path, ignore: Callable | None = None) -> None:
    """Copy a folder; the copy is writable, also if the source is not."""
    shutil.copytree(source, target, ignore=ignore, symlinks=True)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | stat.S_IWUSR)


def run(
    *command: str | Path, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess:
    """Run a command in a new process, with the repository importable and no launcher set."""
    env = {k: v for k, v in os.environ.items() if k not in LAUNCHER}
    env |= {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=env | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


# A server that has imported the stack forks processes, which saves their imports. It must not touch
# CUDA, which does not survive a fork; with this variable torch asks the driver for GPUs instead.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.engine.stack"])


def _script(words: list[str], folder: Path, environment: dict[str, str], printed: Path) -> None:
    """Run `python <words>` in `folder`, with its output in the files `printed`.1 and .2."""
    for number in (1, 2):
        os.dup2(os.open(f"{printed}.{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


def _answer(function: Callable, arguments: tuple, sender) -> None:
    try:
        sender.send((True, function(*arguments)))
    except BaseException:
        sender.send((False, traceback.format_exc()))


def _start(*processes) -> None:
    """Start processes of the server; they do not run the main script of this process again."""
    with mock.patch.object(sys.modules["__main__"], "__file__", None, create=True):
        for process in processes:
            process.start()


def in_server(function: Callable, *arguments: object) -> object:
    """Return `function(*arguments)`, run in a process that has imported the stack and not used it.

    It can fork further processes, unlike this one, where torch has started threads.
    """
    receiver, sender = _SERVER.Pipe(duplex=False)
    process = _SERVER.Process(target=_answer, args=(function, arguments, sender))
    _start(process)
    sender.close()
    succeeded, result = receiver.recv()
    process.join()
    assert succeeded, result
    return result


def run_script(
    script: str | Path,
    *arguments: str | Path,
    folder: Path | None = None,
    ranks: int = 0,
    machines: tuple[Path, ...] = (),
    tasks: Sequence[dict[str, str]] = (),
    **environment,
) -> subprocess.CompletedProcess:
    """Run `python <script> <arguments>` in `folder`.

    With `ranks`, start as many processes as torchrun does, with `machines` one process for each of
    these folders, and with `tasks` one for each of these environments. The status is that of the
    first failed process, and the output that of all processes, in the order of time.
    """
    base = {k: v for k, v in os.environ.items() if k not in LAUNCHER}
    base |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    folder = folder or Path.cwd()
    own = [(folder, task) for task in tasks or [{}]]
    if count := ranks or len(machines):
        base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(count)}
        own = [(folder, {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]
        own += [(path, {"RANK": str(i), "LOCAL_RANK": "0"}) for i, path in enumerate(machines)]
    words = [str(word) for word in (script, *arguments)]
    with TemporaryDirectory() as printed:
        given = [(words, where, base | other, Path(printed, "all")) for where, other in own]
        processes = [_SERVER.Process(target=_script, args=g) for g in given]
        _start(*processes)
        for process in processes:
            process.join(300)
            if process.exitcode is None:
                process.kill()
                process.join()
        out, err = (Path(printed, f"all.{number}").read_text() for number in (1, 2))
    statuses = [process.exitcode for process in processes]
    return subprocess.CompletedProcess(words, next(filter(None, statuses), 0), out, err)


def run_tool(
    tool: str, *arguments: str | Path, ranks: int = 0, **settings
) -> subprocess.CompletedProcess:
    """Run `python tools/<tool> <arguments>`; several processes communicate over gloo.

    `settings` are those of `run_script`.
    """
    launcher = ("--launcher", "pytorch") if ranks or settings.get("machines") else ()
    return run_script(ROOT / "tools" / tool, *arguments, *launcher, ranks=ranks, **settings)


def train_words(config: Path, work: Path, *options: str, flags: tuple[str, ...] = ()) -> list[str]:
    """Return the arguments of train.py."""
    words = [str(config), "--work-dir", str(work), *flags]
    return [*words, "--cfg-options", *options] if options else words


def built(*words: str | Path) -> Runner:
    """Return the Runner that train.py builds for these arguments."""
    settings = arguments(parser().parse_args([str(word) for word in words]))
    assert settings.pop("minutes") is None
    return build_train_runner(**settings)


def train_here(config: Path, work: Path, *options: str, flags: tuple[str, ...] = ()) -> None:
    """Run train.py in this process."""
    train(train_words(config, work, *options, flags=flags))


def fails(command: str, *words: str | Path) -> str:
    """Return what a command that fails prints, which must be one line."""
    main = importlib.import_module(f"mmseg_ext.commands.{command}").main
    try:
        main([str(word) for word in words])
    except Exception as error:
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            report_error(error, command)
        (line,) = printed.getvalue().splitlines()
        return line
    raise AssertionError(f"{command} did not fail")


def log_text(work: Path) -> str:
    """Return the text logs of all starts in a work directory, the oldest first."""
    return "".join(path.read_text() for path in sorted(work.glob("2*/*.log")))


def free_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])
