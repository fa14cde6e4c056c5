"""What a wheel and an editable installation hold, and the metafiles.

The build backend makes both from a copy of the repository, without network.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from mmengine.config import Config

import mmseg_ext
from benchmarks.docs_tables import results
from mmseg_ext.doctor.published_cases import FOLDER
from tests.configs import CONFIGS

ROOT = CONFIGS.parent
SOURCES = ("configs", "demo", "mmseg_ext", "tools", "setup.py", "pyproject.toml", "MANIFEST.in")
FILES = ("README.md", "LICENSE", "CITATION.cff", "constraints.txt", "model-index.yml")
EXPERIMENTS = {path.stem: path for path in CONFIGS.glob("*.py")}


@pytest.fixture
def clone(tmp_path) -> Path:
    """The repository without its environment, builds and links."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in (*SOURCES, *FILES):
        copy, source = folder / name, ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", ".mim"))
        else:
            shutil.copy2(source, copy)
    return folder


def build(kind: str, clone: Path, folder: Path) -> Path:
    """The wheel that the build backend makes, as pip would call it, in this environment."""
    code = f"import sys; from setuptools import build_meta as b; b.build_{kind}(sys.argv[1])"
    folder.mkdir()
    command = [sys.executable, "-c", code, folder]
    result = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_a_wheel_holds_the_package_and_what_mim_looks_for(clone, tmp_path):
    (clone / "build/lib/mmseg_ext/.mim/configs").mkdir(parents=True)  # an earlier build's
    (clone / "build/lib/mmseg_ext/.mim/configs/removed.py").write_text("")
    wheel = build("wheel", clone, tmp_path / "wheels")
    assert wheel.name == f"mmseg_ext-{mmseg_ext.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata, scripts = (
            archive.read(next(n for n in names if n.endswith(end))).decode()
            for end in ("/METADATA", "/entry_points.txt")
        )
    assert "mmseg-ext = mmseg_ext.__main__:main" in scripts
    assert "Provides-Extra: export" in metadata and "Requires-Dist: onedl-mmcv" in metadata
    modules = (clone / "mmseg_ext").rglob("*.py")
    assert {str(path.relative_to(clone)) for path in modules} <= names
    assert {f"mmseg_ext/doctor/parity/{path.name}" for path in FOLDER.glob("*.npz")} <= names
    assert sum(name.endswith("/LICENSE") for name in names) == 1 and "mmseg_ext/py.typed" in names
    parts = {
        str(path.relative_to(clone))
        for top in ("configs", "tools", "demo")
        for path in (clone / top).rglob("*")
        if path.is_file()
    }
    # openmim looks into the package, its maintained successor into RECORD's first folder.
    information = f"mmseg_ext-{mmseg_ext.__version__}.dist-info"
    for prefix in ("mmseg_ext/.mim/", f"{information}/.mim/"):
        found = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
        assert found == parts | {"model-index.yml"}
    assert {name.split("/")[0] for name in names} == {"mmseg_ext", information}
    assert min(names).startswith(information)


def test_an_editable_installation_links_what_mim_looks_for(clone, tmp_path):
    build("editable", clone, tmp_path / "wheels")
    mim = clone / "mmseg_ext/.mim"
    (clone / "configs/new_config.py").write_text("a = 1\n")
    assert Config.fromfile(mim / "configs/new_config.py").a == 1  # a link, not a copy
    index = yaml.safe_load((mim / "model-index.yml").read_text())
    assert all((mim / name).is_file() for name in index["Import"])
    assert (mim / "tools/train.py").is_file() and (mim / "demo").is_dir()


def test_metafiles_say_what_the_configs_say():
    index = yaml.safe_load((ROOT / "model-index.yml").read_text())
    files = [str(path.relative_to(ROOT)) for path in CONFIGS.rglob("*.yml")]
    assert sorted(index["Import"]) == sorted(files)
    trained_here = results("miou")["trained here"]
    listed = []
    for name in files:
        content = yaml.safe_load((ROOT / name).read_text())
        (collection,) = content["Collections"]
        assert (ROOT / collection["README"]).is_file()
        assert collection["Paper"]["URL"].startswith("https://arxiv.org/abs/")
        if "Code" in collection:
            assert (ROOT / collection["Code"]["URL"]).is_file()
        for model in content["Models"]:
            listed.append(model["Name"])
            assert model["In Collection"] == collection["Name"]
            assert model["Config"] == f"configs/{model['Name']}.py"
            config = Config.fromfile(EXPERIMENTS[model["Name"]])
            types = [config.model.backbone.type, config.model.decode_head.type]
            metadata = model["Metadata"]
            assert metadata["Batch Size"] == config.auto_scale_lr.base_batch_size
            assert metadata["Iterations"] == config.train_cfg.max_iters
            assert metadata["Architecture"] == types
            trained = model["Name"] in trained_here
            assert (metadata["Training Resources"] == "not trained here") != trained
            for result in model["Results"]:
                assert result["Task"] == "Semantic Segmentation"
                assert result["Dataset"] == metadata["Training Data"]
                assert trained or not result["Metrics"]
    assert sorted(listed) == sorted(EXPERIMENTS)
