"""What a run sets for a GPU, tested without one; and compiled training."""

import copy
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch._dynamo import register_backend

from mmseg_ext.durable.levers import prepare_for_gpu  # a run would need a GPU
from mmseg_ext.engine import PortableAmpOptimWrapper, amp
from tests.configs import EXPERIMENTS, load
from tests.engine.runs import ROOT, train_here, write_config
from tests.engine.states import logged


@pytest.mark.parametrize(
    ("device", "capability", "expected"),
    [("cuda", (9, 0), "bfloat16"), ("cuda", (7, 5), "float16"), ("cpu", None, "bfloat16")],
)
def test_mixed_precision_of_a_device(monkeypatch, device, capability, expected):
    monkeypatch.setattr(amp, "get_device", lambda: device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1)
    wrapper = PortableAmpOptimWrapper(optimizer=optimizer)
    assert wrapper.cast_dtype == getattr(torch, expected)
    chosen = PortableAmpOptimWrapper(optimizer=optimizer, dtype="float16")
    assert chosen.cast_dtype == torch.float16


@pytest.mark.parametrize(("fast", "dtype"), [(True, None), (False, None), (False, "float16")])
def test_slow_mixed_precision_on_a_cpu_is_a_warning(monkeypatch, capsys, fast, dtype):
    monkeypatch.setattr(amp, "has_bfloat16", lambda device: fast)
    monkeypatch.setattr(amp, "get_device", lambda: "cpu")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1)
    PortableAmpOptimWrapper(optimizer=optimizer, dtype=dtype)
    warned = re.findall("AVX512-BF16.* without --amp", capsys.readouterr().out)
    assert len(warned) == (not fast and dtype is None)


@pytest.mark.slow
def test_bfloat16_follows_the_limit_of_instructions():
    """On a processor that has them."""
    code = "import torch; from mmseg_ext.engine import amp; "
    code += "print(amp.has_bfloat16(torch.device('cpu')))"
    limited = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    words = (sys.executable, "-c", code)
    result = subprocess.run(words, env=limited, cwd=ROOT, capture_output=True, text=True)
    assert result.stdout.split() == ["False"], result.stderr


def test_precision_and_pinned_memory_are_set_for_a_gpu(monkeypatch):
    config = load(EXPERIMENTS["ea_r18_shapes"])
    own = {"float32_matmul_precision": "medium", "train_dataloader": {"pin_memory": False}}
    seen = []
    for available, changes in ((False, {}), (True, {}), (True, own)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda a=available: a)
        given = copy.deepcopy(config)
        given.merge_from_dict(changes)
        torch.set_float32_matmul_precision("highest")
        try:
            prepare_for_gpu(given)
            precision = torch.get_float32_matmul_precision()
        finally:
            torch.set_float32_matmul_precision("highest")
        loaders = (given.train_dataloader, given.val_dataloader)
        seen.append((precision, *(loader.get("pin_memory") for loader in loaders)))
    assert seen == [("highest", None, None), ("high", True, True), ("medium", False, True)]


@pytest.mark.parametrize("available", [True, False])
def test_kernels_of_cudnn_on_a_gpu(monkeypatch, available):
    """No attention, whose gradients can be NaN, and four trials of each convolution."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark_limit", 10)
    try:
        prepare_for_gpu(load(EXPERIMENTS["ea_r18_shapes"]))
        found = torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cudnn.benchmark_limit
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
        torch.set_float32_matmul_precision("highest")
    assert found == ((False, 4) if available else (True, 10))


@pytest.mark.slow
def test_compiled_training_has_the_same_losses(tmp_path):
    """Two iterations, whose losses are one graph or two; `train_step` has more than 20.

    The tests of each model compile it, with its gradients.
    """
    losses, graphs = [], []

    @register_backend
    def recorded(graph, inputs):
        graphs.append(graph)
        return graph.forward

    for i, compiled in enumerate((False, dict(backend="recorded"))):
        text = f"compile = {compiled}\ntrain_cfg['max_iters'] = 2\n"
        text += "log_processor = dict(window_size=1)\n"
        text += "model['backbone'].update(num_stages=1, strides=(1,), dilations=(1,))\n"
        text += "model['backbone']['out_indices'], model['decode_head']['in_channels'] = (0,), 8\n"
        config = write_config(tmp_path, text, f"compiled{i}.py")
        train_here(config, tmp_path / f"work{i}")
        losses.append([row["loss"] for row in logged(tmp_path / f"work{i}").values()])
    assert len(losses[0]) == 2 and 1 <= len(graphs) <= 4
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
