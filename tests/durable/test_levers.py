"""Memory layouts, compiled blocks and captured steps, without a GPU."""

import contextlib
import copy
import functools
import json
import pkgutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import Runner
from torch import Tensor, nn
from torch._dynamo import register_backend
from torch.utils._pytree import tree_leaves

from mmseg_ext.durable.cuda_graph import GraphedStep
from mmseg_ext.durable.levers import (
    LEVERS,
    compile_blocks,
    preprocess_without_waiting,
    to_channels_last,
    use_channels_last,
)
from mmseg_ext.engine.amp import PortableAmpOptimWrapper
from mmseg_ext.engine.build import build_segmentor
from mmseg_ext.errors import LaunchError, RunError
from mmseg_ext.upstream import converts_channels
from tests.engine.run_hooks import Crash
from tests.engine.runs import built, log_text, train_here, train_words, write_config
from tests.engine.states import RANDOM, UNVALIDATED, assert_same_runs, logged
from tests.messages import lines_with, raises_message
from tests.segmentors.small import labelled, segmentor


class RecordedCalls:
    """Stands in for `CudaGraph`: a replay calls the function again and overwrites its results."""

    stream = contextlib.nullcontext

    def __init__(self, model: nn.Module):
        self.model = model

    def capture(self, function):
        """As on a GPU, nothing is computed: the model and the generator are restored."""
        self.function = function
        before, random = copy.deepcopy(self.model.state_dict()), torch.get_rng_state()
        self.results = function()
        self.model.load_state_dict(before)
        torch.set_rng_state(random)
        return self.results

    def replay(self):
        pairs = zip(tree_leaves(self.results), tree_leaves(self.function()), strict=True)
        for captured, new in pairs:
            if isinstance(new, Tensor):
                captured.copy_(new)


class CaptureSteps(Hook):
    """Captures the steps of a run by `RecordedCalls`."""

    def before_train(self, runner):
        graph = functools.partial(RecordedCalls, runner.model)
        runner.model.train_step = GraphedStep(runner.model, graph)


def train_captured(config, work, *options: str, flags=()) -> None:
    runner = built(*train_words(config, work, *options, flags=flags))
    runner.register_hook(CaptureSteps())
    runner.train()


@pytest.mark.slow
def test_captured_steps_equal_steps_without_a_graph(tmp_path):
    """Twelve steps with dropout, batch norm, clipping and averages, one killed after the eighth."""
    text = RANDOM + UNVALIDATED + "optim_wrapper['clip_grad'] = dict(max_norm=0.1)\n"
    text += "model['backbone']['norm_cfg'] = dict(type='BN')\n"
    config = write_config(tmp_path, text)
    text += "custom_hooks += [dict(type='CrashAt', iteration=10)]\n"
    cut = write_config(tmp_path, text, "cut.py")
    works = [tmp_path / name for name in ("plain", "captured", "resumed")]
    train_here(config, works[0])
    train_captured(config, works[1])
    with pytest.raises(Crash):
        train_captured(cut, works[2])
    train_captured(config, works[2], flags=("--resume",))
    for work in works[1:]:
        assert_same_runs(works[0], work, 12)


def test_hooks_of_the_model_see_the_losses_of_each_step(tmp_path):
    """A loss that becomes NaN after the capture stops the run, and its images are named."""
    config = write_config(tmp_path, UNVALIDATED)
    runner = built(*train_words(config, tmp_path / "work"))

    class Spoil(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch: Any = None):
            if runner.iter == 6:
                for image in data_batch["inputs"]:
                    image.fill_(0)
                with torch.no_grad():
                    runner.model.decode_head.conv_seg.bias.fill_(torch.nan)

    runner.register_hook(CaptureSteps())
    runner.register_hook(Spoil())
    with raises_message(RunError, "nan", 7, ".png", todo="--resume"):
        runner.train()


class Product(BaseModel):
    """A model whose loss is the square of a weight times the images."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.calls = 0

    def forward(self, inputs, data_samples=None, mode="loss"):
        self.calls += 1
        return {"loss": (self.weight * inputs).square().mean()}


class Waiting(Product):
    def forward(self, inputs, data_samples=None, mode="loss"):
        if self.calls == 3:
            raise RuntimeError("operation not permitted when stream is capturing\nSet a variable")
        return super().forward(inputs)


class Drawing(Product):
    def forward(self, inputs, data_samples=None, mode="loss"):
        np.random.rand()
        return super().forward(inputs)


class Replacing(Product):
    """As mmsegmentation's EMAHead, whose bases are a new tensor after each step."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, inputs, data_samples=None, mode="loss"):
        self.mean = 0.9 * self.mean + 0.1 * inputs.mean()
        return super().forward(inputs)


class OwnStep(Product):
    def train_step(self, data, optim_wrapper):
        return super().train_step(data, optim_wrapper)


def train_product(model: Product, wrapper, sizes: list[int]) -> list[float]:
    step = GraphedStep(model, functools.partial(RecordedCalls, model))
    return [step({"inputs": torch.arange(n + 1.0)}, wrapper)["loss"].item() for n in sizes]


def sgd(model: Product) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def test_a_batch_of_another_shape_runs_without_the_graph():
    plain, captured = Product(), Product()
    wrapper = OptimWrapper(sgd(plain))
    sizes = [2, 2, 2, 2, 5, 2, 7]
    expected = [
        plain.train_step({"inputs": torch.arange(n + 1.0)}, wrapper)["loss"].item() for n in sizes
    ]
    assert train_product(captured, OptimWrapper(sgd(captured)), sizes) == expected
    assert torch.equal(captured.weight, plain.weight)


def test_a_moved_weight_is_captured_again():
    plain, captured = Product(), Product()
    models = {plain: plain.train_step}
    models[captured] = GraphedStep(captured, functools.partial(RecordedCalls, captured))
    losses = []
    for model, step in models.items():
        wrapper = OptimWrapper(sgd(model))
        for i in range(12):
            if i == 6:
                model.weight.data = torch.full((), 3.0)
            losses.append(step({"inputs": torch.arange(3.0)}, wrapper)["loss"].item())
    assert losses[:12] == losses[12:]


@pytest.mark.parametrize(
    ("kind", "wrap", "reason"),
    [
        (Waiting, OptimWrapper, r"test_levers\.py:\d+: RuntimeError: .* capturing;"),
        (Drawing, OptimWrapper, "CPU"),
        (Replacing, OptimWrapper, "buffers"),
        (OwnStep, OptimWrapper, "train_step"),
        (Product, functools.partial(OptimWrapper, accumulative_counts=2), "accumulative_counts"),
        (Product, functools.partial(PortableAmpOptimWrapper, dtype="float16"), "bfloat16"),
        (Product, lambda optimizer: OptimWrapperDict(a=OptimWrapper(optimizer)), "optimizers"),
    ],
    ids=["waits", "draws", "replaces", "own step", "accumulates", "scales", "optimizers"],
)
def test_a_step_that_cannot_be_captured_is_refused(kind, wrap, reason):
    model = kind()
    with pytest.raises(LaunchError, match=f"^cuda_graph=True: .*{kind.__name__}.*{reason}.*$"):
        train_product(model, wrap(optimizer=sgd(model)), [1] * 5)


def test_on_a_cpu_no_step_is_captured():
    model = Product()
    step = GraphedStep(model)
    for _ in range(6):
        step({"inputs": torch.ones(2)}, OptimWrapper(sgd(model)))
    assert model.calls == 6


DANET = dict(type="DAHead", pam_channels=4)
EANET = dict(type="EAHead")


@pytest.mark.parametrize("head", [EANET, DANET], ids=lambda head: head["type"])
def test_channels_last_has_the_same_gradients(head):
    """In float64; in float32 a value near zero can pass a ReLU in one layout only."""
    gradients = []
    for convert in (nn.Identity(), to_channels_last):
        torch.manual_seed(0)
        model: Any = convert(segmentor(kind="StripEncoderDecoder", **head).double().train())
        images = torch.randn(2, 3, 48, 48, dtype=torch.float64)
        losses = model(images, labelled((48, 48)), mode="loss")
        model.parse_losses(losses)[0].backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert gradients[1][0].is_contiguous(memory_format=torch.channels_last)
    largest = max(one.abs().max() for one in gradients[0])  # biases before a norm have about zero
    for one, other in zip(*gradients, strict=True):
        assert (other - one).abs().max() <= 1e-12 * largest


def test_channels_are_swapped_as_by_mmsegmentation():
    """Also after an error, and in a second run; the preprocessor still says that it swaps."""
    (plain, fast), batches = (segmentor().data_preprocessor for _ in range(2)), {}
    for _ in range(2):
        preprocess_without_waiting(fast)
    for training in (True, False, True):
        for preprocessor in (plain, fast):
            torch.manual_seed(0)
            data = {"inputs": [torch.randint(256, (3, 9, 8), dtype=torch.uint8) for _ in range(2)]}
            data["data_samples"] = labelled((9, 8))
            preprocessor.size = (9, 8)
            batches[preprocessor] = preprocessor(data, training)["inputs"]
        assert torch.equal(batches[plain], batches[fast]) and batches[fast].is_floating_point()
        with pytest.raises(AttributeError):
            fast({"inputs": [torch.zeros(3, 9, 8), None]}, True)
        assert converts_channels(fast)


@pytest.mark.parametrize("given", [None, False, True])
def test_on_a_gpu_channels_last_is_the_default_of_tested_models(monkeypatch, given):
    """DMHead of mmsegmentation and layers of other packages get it on request only."""
    models = {name: segmentor(type=name) for name in ("FCNHead", "DMHead")}
    models["own"] = segmentor()
    models["own"].decode_head.own = Product()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    layouts = {}
    for name, model in models.items():
        cfg = {} if given is None else {"channels_last": given}
        use_channels_last(SimpleNamespace(model=model, cfg=cfg))
        layouts[name] = not model.backbone.layer4[0].conv1.weight.is_contiguous()
    tested = given is not False
    assert layouts == {"FCNHead": tested, "DMHead": bool(given), "own": bool(given)}


@pytest.mark.slow
def test_channels_last_resumes_from_other_layouts_and_back(tmp_path):
    """A change of the layout in the middle only rounds; without one a resume is exact."""
    text = UNVALIDATED + "custom_hooks = [dict(type='EMAHook', momentum=0.1)]\n"
    config = write_config(tmp_path, text)
    text += "custom_hooks += [dict(type='CrashAt', iteration=6)]\n"
    cut = write_config(tmp_path, text, "cut.py")
    last = "channels_last=True"
    runs = {
        "plain": ((), ()),
        "last": ((last,), (last,)),
        "to": ((), (last,)),
        "from": ((last,), ()),
    }
    losses = {}
    for name, (first, second) in runs.items():
        with pytest.raises(Crash):
            train_here(cut, tmp_path / name, *first)
        train_here(config, tmp_path / name, *second, flags=("--resume",))
        losses[name] = [row["loss"] for row in logged(tmp_path / name).values()]
    train_here(config, tmp_path / "whole", last)
    assert_same_runs(tmp_path / "whole", tmp_path / "last", 12)
    for name in ("last", "to", "from"):
        np.testing.assert_allclose(losses[name], losses["plain"], rtol=1e-5)
    saved = torch.load(tmp_path / "last/iter_12.pth", weights_only=True)
    stock = build_segmentor(Config.fromfile(config))
    stock.load_state_dict(saved["state_dict"])


@pytest.mark.slow
def test_blocks_are_compiled_for_training_only(tmp_path, monkeypatch):
    """Two blocks of equal shapes share a graph, and a validation compiles none.

    With deterministic algorithms the log warns of compiled kernels.
    """
    for name in ("CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_DETERMINISTIC"):
        monkeypatch.setenv(name, "")
    losses, graphs = [], []

    @register_backend
    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    for i, compiled in enumerate((False, dict(backend="counted"))):
        text = f"compile_blocks = {compiled}\ntrain_cfg.update(max_iters=3, val_interval=2)\n"
        text += "log_processor = dict(window_size=1)\n"
        text += "model['backbone'].update(depth=34, num_stages=1, strides=(1,), dilations=(1,))\n"
        text += "model['backbone']['out_indices'], model['decode_head']['in_channels'] = (0,), 8\n"
        config = write_config(tmp_path, text, f"compiled{i}.py")
        try:
            train_here(config, tmp_path / f"work{i}", "randomness.deterministic=True")
        finally:
            torch.use_deterministic_algorithms(False)
        losses.append([row["loss"] for row in logged(tmp_path / f"work{i}").values()])
    assert len(graphs) == 1
    warnings = [log_text(tmp_path / f"work{i}").count("WARNING - compile") for i in range(2)]
    assert warnings == [0, 1]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


@pytest.mark.slow
def test_mmengines_runner_trains_with_the_keys(tmp_path):
    """Our command applies them, and mmsegmentation's ignores them."""
    text = "runner_type, channels_last, cuda_graph = 'Runner', True, True\n"
    text += "compile_blocks = dict(backend='eager')\ntrain_cfg['max_iters'] = 2\n"
    config = write_config(tmp_path, UNVALIDATED + text)
    train_here(config, tmp_path / "ours")
    assert "compile_blocks: 8 blocks" in log_text(tmp_path / "ours")
    cfg = Config.fromfile(config)
    cfg.work_dir = str(tmp_path / "stock")
    Runner.from_cfg(cfg).train()
    assert "compile_blocks: " not in log_text(tmp_path / "stock")


def test_blocks_are_those_of_the_backbone():
    model = segmentor()
    assert compile_blocks(model, backend="eager") == 8


def test_the_log_says_what_a_run_uses(tmp_path):
    """Of the optimizer and the network themselves, and only what has a meaning on a CPU."""
    text = UNVALIDATED + "train_cfg['max_iters'] = 1\nchannels_last = True\n"
    work = tmp_path / "work"
    train_here(write_config(tmp_path, text), work, "optim_wrapper.optimizer.fused=True")
    (line,) = lines_with(log_text(work), "levers: ")
    used = dict(part.split("=") for part in line.rpartition("levers: ")[2].split(", "))
    expected = {"pin_memory": False, "merged_groups": True, "channels_last": True}
    expected |= {"fused_steps": True, "compile": False, "compile_blocks": False}
    expected |= {"cuda_graph": False, "strips": True}
    assert used == {key: str(value) for key, value in expected.items()}
    (record,) = work.glob("2*/run.json")
    assert json.loads(record.read_text())["levers"] == expected


def test_each_lever_is_one_row_that_names_existing_code():
    for lever in LEVERS:
        pkgutil.resolve_name(f"mmseg_ext.{lever.applied_by}")
    assert len({lever.key for lever in LEVERS}) == len(LEVERS)
