"""Rebuild the parity fixtures from the published code and compare them with the stored ones.

    python -m tests.rebuild_fixtures CLONES

CLONES contains one clone for each repository that a fixture's `meta` names, checked out at the
commit in `meta`. timm is imported from its clone: install its requirements (torchvision,
huggingface_hub, safetensors, PyYAML), and einops.

Every published module gets the weights and the input that `mmseg_ext.doctor.fixtures` defines, and
runs in float64 and eval mode. Stubs replace modules that the published files import and the models
do not use. Nothing from the clones becomes part of this repository.
"""

import contextlib
import importlib
import io
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock, patch

import torch
from torch import Tensor, nn

from mmseg_ext.doctor.fixtures import FOLDER, Fixture

BOUND = 1e-6  # of the largest stored value, which is rounded to float32
RMT_FOLDER = "segmentation/mmseg/models/backbones"
RMT = dict(embed_dims=[64, 128, 256, 512], num_heads=[4, 4, 8, 16], init_values=[2, 2, 2, 2])
RMT |= dict(heads_ranges=[4, 4, 6, 6])
RMT_TINY = dict(
    depths=[2, 2, 8, 2], mlp_ratios=[3, 3, 3, 3], chunkwise_recurrents=[True, True, False, False]
)
RMT_SMALL = dict(
    depths=[3, 4, 18, 4], mlp_ratios=[4, 4, 3, 3], chunkwise_recurrents=[True, True, True, False]
)

# A published module, and a function that runs it and returns a tensor or named outputs.
Built = tuple[nn.Module, Callable[[Tensor], Tensor | Mapping[str, Tensor]]]

# The published files import these, and the models do not use them.
STUBS = {name: MagicMock() for name in ("fvcore", "fvcore.nn", "mmcv_custom", "mmseg.utils")}
STUBS |= {name: MagicMock() for name in ("bn_lib", "bn_lib.nn", "published", "published.builder")}
STUBS["bn_lib.nn.modules"] = SimpleNamespace(SynchronizedBatchNorm2d=nn.BatchNorm2d)
STUBS["settings"] = SimpleNamespace(BN_MOM=0.1, STRIDE=8, IGNORE_LABEL=255)
STUBS["published.builder"].BACKBONES.register_module.return_value = lambda cls: cls


def load(folder: Path, module: str) -> SimpleNamespace:
    """Run a file as a module of a package `published`, and return its names."""
    package = ModuleType("published.folder")
    package.__path__ = [str(folder)]
    with patch.dict(sys.modules, {**STUBS, package.__name__: package}):
        names = {"nn": nn}  # EANet's multi_head_attention_torch.py lacks the import
        path = str(folder / f"{module}.py")
        return SimpleNamespace(**runpy.run_path(path, names, f"{package.__name__}.{module}"))


def with_maps(model: nn.Module, stages: Mapping[str, tuple[str, int]]) -> Built:
    """Return how to get the logits and, from the output of submodules, every n-th channel."""
    maps = {}
    for name, (submodule, step) in stages.items():
        model.get_submodule(submodule).register_forward_hook(
            lambda _, __, y, name=name, step=step: maps.update({name: y[:, ::step]})
        )
    return model, lambda x: {"logits": model(x), **maps}


def build(name: str, meta: dict, folder: Path) -> Built:
    """Return the published module of a fixture, and how to run it."""
    match name:
        case "eanet_external_attention":
            model = load(folder, "model_torch").External_attention(512)
        case "eanet_r101_voc":
            with patch("torch.load", return_value={}):  # the backbone's pretrained weights
                model = load(folder, "model_torch").EANet(21, 101)
            return model, lambda x: model(x)[:, :, ::4, ::4]
        case "eamlp_multi_head_external_attention_384":
            module = load(folder, "multi_head_attention_torch")
            model = module.Attention(meta["dim"], meta["num_heads"])
        case "eamlp_14":
            model = load(folder / "EAMLP/models", "t2t_vit").T2t_vit_14(img_size=224)
        case "masa_decomposed" | "masa_full":
            module, sizes = load(folder / RMT_FOLDER, "RMT"), (meta["dim"], meta["num_heads"])
            axes = name == "masa_decomposed"
            model = (module.VisionRetentionChunk if axes else module.VisionRetentionAll)(*sizes)
            decay = meta["decay_start"], meta["decay_range"]
            positions = module.RetNetRelPos2d(*sizes, *decay).double()
            return model, lambda x: model(x, positions(x.shape[1:3], chunkwise_recurrent=axes))
        case "rmt_tiny_features" | "rmt_small_features":
            sizes = RMT_TINY if name == "rmt_tiny_features" else RMT_SMALL
            model = load(folder / RMT_FOLDER, "RMT").RMT(**RMT, **sizes)
            return model, lambda x: {f"stage{i}": y for i, y in enumerate(model(x))}
        case "rmt_classifier_small":
            model = load(folder / "classfication_release", "RMT").RMT_S(None)
        case "lambda_global" | "lambda_local_u1" | "lambda_local_u4":
            names = {"dim", "dim_out", "dim_k", "dim_u", "heads", "n", "r"} & meta.keys()
            module = load(folder / "lambda_networks", "lambda_networks")
            model = module.LambdaLayer(**{name: meta[name] for name in names})
        case "lambda_resnet50":
            model = load(folder, "lambda_resnet").lambda_resnet50()
            return with_maps(model, {"stage2": ("layer3", 4), "stage3": ("layer4", 8)})
        case "timm_lambda_resnet26t":
            model = importlib.import_module("timm.models.byoanet").lambda_resnet26t()
            return with_maps(model, {"features": ("final_conv", 8)})
        case "efficientnet_lite0":
            with patch.object(sys, "path", [str(folder), *sys.path]):
                module = importlib.import_module("efficientnet_lite_pytorch")
            model = module.EfficientNet.from_name("efficientnet-lite0")
            # The last blocks of two stages.
            return with_maps(model, {"stage0": ("_blocks.2", 4), "stage2": ("_blocks.10", 4)})
        case "timm_efficientnet_lite2":
            model = importlib.import_module("timm.models.efficientnet").tf_efficientnet_lite2()
            return with_maps(model, {"stage1": ("blocks.2", 4), "stage3": ("blocks.6", 8)})
        case "deepvit_re_attention":
            kind = load(folder / "models", "layers").ReAttention
            model = kind(384, 12, qkv_bias=True, transform_scale=meta["transform_scale"])
            return model, lambda x: model(x)[0]
        case _:
            module = load(folder / "models", "deep_vision_transformer")
            models = {"deepvit_s": "deepvit_S", "deepvit_l_64": "deepvit_L"}
            kind = getattr(module, models.get(name, "deepvit_patch16_224_re_attn_16b"))
            model = kind(img_size=meta["inputs"]["img"][-1])
    return model, model


def rebuild(fixture: Fixture, folder: Path) -> float:
    """Return the largest relative difference between the published outputs and the stored ones."""
    name, meta = fixture.meta["name"], fixture.meta
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    assert head == meta["commit"], f"{folder}: check out {meta['commit']}"
    with contextlib.redirect_stdout(io.StringIO()):  # of the published constructors
        model, run = build(name, meta, folder)
    model.double()
    model.eval()  # which some published modules do not return
    shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
    computed = re.compile(r".*Relpos\.(angle|decay)|pos_embed")
    shapes = {k: s for k, s in shapes.items() if k in meta["keys"] or not computed.fullmatch(k)}
    assert list(shapes.items()) == list(meta["keys"].items()), "keys or shapes differ"
    model.load_state_dict(fixture.state_dict, strict=False)
    (x,) = fixture.inputs.values()
    with torch.no_grad():
        outputs = run(x.double())
    if isinstance(outputs, Tensor):
        outputs = {next(iter(fixture.outputs)): outputs}
    assert outputs.keys() == fixture.outputs.keys(), f"the outputs are {sorted(outputs)}"
    return max(
        float((outputs[k] - y).abs().max() / y.abs().max()) for k, y in fixture.outputs.items()
    )


def main() -> int:
    """Rebuild every fixture; return 1 if one differs."""
    (clones,) = map(Path, sys.argv[1:])
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(clones / "pytorch-image-models"))  # other repositories import timm, too
    importlib.import_module("timm")  # once: torch cannot import again what it imports
    failed = 0
    for name in sorted(path.stem for path in FOLDER.glob("*.npz")):
        fixture = Fixture(name)
        source = f"{fixture.meta['repository']} {fixture.meta['commit'][:7]}"
        try:
            error = rebuild(fixture, clones / fixture.meta["repository"].split("/")[-1])
            failed += error > BOUND
            print(f"{name:<40} {error:.1e}  {source}", flush=True)
        except Exception as problem:
            failed += 1
            print(f"{name:<40} FAIL  {type(problem).__name__}: {problem}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
