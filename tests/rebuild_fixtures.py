"""Rebuild the parity fixtures from the published code and compare them with the stored ones.

    python -m tests.rebuild_fixtures CLONES             # compare
    python -m tests.rebuild_fixtures CLONES --record    # also write repository and commit to `meta`

CLONES contains one clone for each of `COMMITS`, checked out at that commit and named like its
repository. timm is imported from its clone: install its requirements (torchvision,
huggingface_hub, safetensors, PyYAML), and einops.

Every published module gets the weights and the input that `mmseg_ext.doctor.fixtures` defines, and
runs in float64 and eval mode. Stubs replace modules that the published files import and the models
do not use. Nothing from the clones becomes part of this repository.
"""

import argparse
import contextlib
import importlib
import io
import json
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch import Tensor, nn

from mmseg_ext.doctor.fixtures import FOLDER, Fixture

COMMITS = {
    "MenghaoGuo/EANet": "59c03cb0a286d3a29a797f8ea07fb89d7af56b60",
    "qhfan/RMT": "32ea21417a4d82ba6481f930f94cb4696dda0a8e",
    "lucidrains/lambda-networks": "8116ff3685c679efaaca4137fc0f5d7cc88b5e4b",
    "d-li14/lambda.pytorch": "646de5589bc5cb8b256e36808f5a37faec88f421",
    "zhoudaquan/dvit_repo": "1ccb152cea43fcbc3cd517a45c12c65734f8ace3",
    "huggingface/pytorch-image-models": "aa4b5850c1543fa488abf260f18390eda46cf85d",
}
BOUND = 1e-6  # of the largest stored value, which is rounded to float32
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


def load(folder: Path, module: str, stubs: Mapping[str, object] = {}) -> ModuleType:
    """Import `module` of `folder`, in which `stubs` replace other modules, by their names."""
    package = "published_" + "_".join(folder.parts[-2:]).replace(".", "_").replace("-", "_")
    sys.modules[package] = ModuleType(package)
    sys.modules[package].__path__ = [str(folder)]
    with patch.dict(sys.modules, {n.replace("PACKAGE", package): m for n, m in stubs.items()}):
        return importlib.import_module(f"{package}.{module}")


def eanet(folder: Path, name: str, *arguments: int) -> Built:
    stubs = {name: MagicMock() for name in ("bn_lib", "bn_lib.nn")}
    stubs["bn_lib.nn.modules"] = SimpleNamespace(SynchronizedBatchNorm2d=nn.BatchNorm2d)
    stubs["settings"] = SimpleNamespace(BN_MOM=0.1, STRIDE=8, IGNORE_LABEL=255)
    module = load(folder, "model_torch", stubs)
    with patch("torch.load", return_value={}):  # the backbone's pretrained weights
        model = getattr(module, name)(*arguments)
    if name == "External_attention":
        return model, model
    return model, lambda x: model(x)[:, :, ::4, ::4]


def eamlp_attention(folder: Path, meta: dict) -> Built:
    path = folder / "multi_head_attention_torch.py"
    names = runpy.run_path(str(path), init_globals={"nn": nn})  # the file lacks the import
    model = names["Attention"](meta["dim"], meta["num_heads"])
    return model, model


def eamlp(folder: Path) -> Built:
    model = load(folder / "EAMLP/models", "t2t_vit").T2t_vit_14(img_size=224)
    return model, model


def rmt_module(folder: Path) -> ModuleType:
    backbones = ModuleType("backbones")
    backbones.__path__ = [str(folder / "segmentation/mmseg/models/backbones")]
    builder = MagicMock()
    builder.BACKBONES.register_module.return_value = lambda cls: cls
    stubs = {"PACKAGE.backbones": backbones, "PACKAGE.builder": builder}
    stubs |= {name: MagicMock() for name in ("mmcv_custom", "mmseg.utils")}
    return load(folder / "segmentation/mmseg/models", "backbones.RMT", stubs)


def masa(folder: Path, meta: dict, name: str) -> Built:
    module = rmt_module(folder)
    sizes = meta["dim"], meta["num_heads"]
    model = getattr(module, name)(*sizes)
    positions = module.RetNetRelPos2d(*sizes, meta["decay_start"], meta["decay_range"]).double()
    along_axes = name == "VisionRetentionChunk"
    return model, lambda x: model(x, positions(x.shape[1:3], chunkwise_recurrent=along_axes))


def rmt_features(folder: Path, settings: dict) -> Built:
    model = rmt_module(folder).RMT(**RMT, **settings)
    return model, lambda x: {f"stage{i}": y for i, y in enumerate(model(x))}


def rmt_classifier(folder: Path) -> Built:
    stubs = {name: MagicMock() for name in ("fvcore", "fvcore.nn")}
    model = load(folder / "classfication_release", "RMT", stubs).RMT_S(None)
    return model, model


def lambda_layer(folder: Path, meta: dict) -> Built:
    names = ("dim", "dim_out", "dim_k", "dim_u", "heads", "n", "r")
    module = load(folder / "lambda_networks", "lambda_networks")
    model = module.LambdaLayer(**{name: meta[name] for name in names if name in meta})
    return model, model


def with_maps(model: nn.Module, stages: Mapping[str, tuple[str, int]]) -> Built:
    """Return how to get the logits and, from the output of submodules, every n-th channel."""
    maps = {}
    for name, (submodule, step) in stages.items():
        model.get_submodule(submodule).register_forward_hook(
            lambda _, __, y, name=name, step=step: maps.update({name: y[:, ::step]})
        )
    return model, lambda x: {"logits": model(x), **maps}


def lambda_resnet50(folder: Path) -> Built:
    model = load(folder, "lambda_resnet").lambda_resnet50()
    return with_maps(model, {"stage2": ("layer3", 4), "stage3": ("layer4", 8)})


def timm_lambda_resnet(folder: Path) -> Built:
    model = importlib.import_module("timm.models.byoanet").lambda_resnet26t()
    return with_maps(model, {"features": ("final_conv", 8)})


def deepvit(folder: Path, name: str, **arguments: int) -> Built:
    model = getattr(load(folder / "models", "deep_vision_transformer"), name)(**arguments)
    return model, model


def re_attention(folder: Path, meta: dict) -> Built:
    kind = load(folder / "models", "layers").ReAttention
    model = kind(384, 12, qkv_bias=True, transform_scale=meta["transform_scale"])
    return model, lambda x: model(x)[0]


# Fixture: repository, and a function of the clone's folder and the fixture's `meta`.
FIXTURES: dict[str, tuple[str, Callable[[Path, dict], Built]]] = {
    "eanet_external_attention": (
        "MenghaoGuo/EANet",
        lambda folder, meta: eanet(folder, "External_attention", 512),
    ),
    "eanet_r101_voc": ("MenghaoGuo/EANet", lambda folder, meta: eanet(folder, "EANet", 21, 101)),
    "eamlp_multi_head_external_attention_384": ("MenghaoGuo/EANet", eamlp_attention),
    "eamlp_14": ("MenghaoGuo/EANet", lambda folder, meta: eamlp(folder)),
    "masa_decomposed": ("qhfan/RMT", lambda f, meta: masa(f, meta, "VisionRetentionChunk")),
    "masa_full": ("qhfan/RMT", lambda f, meta: masa(f, meta, "VisionRetentionAll")),
    "rmt_tiny_features": ("qhfan/RMT", lambda folder, meta: rmt_features(folder, RMT_TINY)),
    "rmt_small_features": ("qhfan/RMT", lambda folder, meta: rmt_features(folder, RMT_SMALL)),
    "rmt_classifier_small": ("qhfan/RMT", lambda folder, meta: rmt_classifier(folder)),
    "lambda_global": ("lucidrains/lambda-networks", lambda_layer),
    "lambda_local_u1": ("lucidrains/lambda-networks", lambda_layer),
    "lambda_local_u4": ("lucidrains/lambda-networks", lambda_layer),
    "lambda_resnet50": ("d-li14/lambda.pytorch", lambda folder, meta: lambda_resnet50(folder)),
    "timm_lambda_resnet26t": (
        "huggingface/pytorch-image-models",
        lambda folder, meta: timm_lambda_resnet(folder),
    ),
    "deepvit_re_attention": ("zhoudaquan/dvit_repo", re_attention),
    "deepvit_re_attn_16b": (
        "zhoudaquan/dvit_repo",
        lambda folder, meta: deepvit(folder, "deepvit_patch16_224_re_attn_16b"),
    ),
    "deepvit_s": ("zhoudaquan/dvit_repo", lambda folder, meta: deepvit(folder, "deepvit_S")),
    "deepvit_l_64": (
        "zhoudaquan/dvit_repo",
        lambda folder, meta: deepvit(folder, "deepvit_L", img_size=64),
    ),
}


def rebuild(fixture: Fixture, build: Callable[[Path, dict], Built], folder: Path) -> float:
    """Return the largest relative difference between the published outputs and the stored ones.

    Raises:
        ValueError: if the published state dict has other keys or shapes than the fixture.
    """
    with contextlib.redirect_stdout(io.StringIO()):  # of the published constructors
        model, run = build(folder, fixture.meta)
    model.double()
    model.eval()  # which some published modules do not return
    shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
    formulas = [
        k for k in shapes if k.endswith(("Relpos.angle", "Relpos.decay")) or k == "pos_embed"
    ]
    listed = {k: s for k, s in shapes.items() if k in fixture.meta["keys"] or k not in formulas}
    if list(listed.items()) != list(fixture.meta["keys"].items()):
        raise ValueError(f"{fixture.meta['name']}: keys or shapes differ from the published ones")
    model.load_state_dict(fixture.state_dict, strict=False)
    (x,) = fixture.inputs.values()
    with torch.no_grad():
        outputs = run(x.double())
    if isinstance(outputs, Tensor):
        outputs = {next(iter(fixture.outputs)): outputs}
    if outputs.keys() != fixture.outputs.keys():
        raise ValueError(f"{fixture.meta['name']}: the outputs are {sorted(outputs)}")
    return max(
        float((outputs[k] - y).abs().max() / y.abs().max()) for k, y in fixture.outputs.items()
    )


def record(name: str, repository: str) -> None:
    """Write the repository and its commit to the fixture's `meta`."""
    path = FOLDER / f"{name}.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    meta = json.loads(str(arrays.pop("meta")))
    meta |= dict(repository=f"https://github.com/{repository}", commit=COMMITS[repository])
    np.savez_compressed(path, meta=json.dumps(meta), **arrays)


def main() -> int:
    """Rebuild every fixture; return 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clones", type=Path, help="folder with the clones of COMMITS")
    parser.add_argument("--record", action="store_true", help="write repository and commit to meta")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(args.clones / "pytorch-image-models"))
    failed = 0
    for name in sorted(path.stem for path in FOLDER.glob("*.npz")):
        repository, build = FIXTURES[name]
        folder = args.clones / repository.split("/")[1]
        head = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
        try:
            if head != COMMITS[repository]:
                raise ValueError(
                    f"{folder} is at {head or 'no commit'}; check out {COMMITS[repository]}"
                )
            error = rebuild(Fixture(name), build, folder)
        except Exception as problem:
            failed += 1
            print(f"{name:<42} not rebuilt: {type(problem).__name__}: {problem}", flush=True)
            continue
        failed += error > BOUND
        print(f"{name:<42} {error:.1e}  {repository} {head[:7]}", flush=True)
        if args.record and error <= BOUND:
            record(name, repository)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
