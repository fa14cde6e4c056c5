"""Contents of the sdist, the wheel and an editable installation; the metafiles.

The build backend builds them from a copy of the repository, without network.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import numpy as np
import pytest
import yaml
from mmengine.config import Config
from PIL import Image

import mmseg_ext
from benchmarks.docs_tables import results
from mmseg_ext.doctor.fixtures import FOLDER
from tests.configs import CONFIGS

ROOT = CONFIGS.parent
FOLDERS = ("benchmarks", "configs", "demo", "docs", "mmseg_ext", "projects", "tests", "tools")
FOLDERS += ("weights",)
FOLDERS += (".ci", ".github")
FILES = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile")
FILES += ("README.md", "constraints.txt", "mkdocs.yml", "model-index.yml", "pyproject.toml")
FILES += ("setup.py", "mmseg_ext_cli.py")
VERSION = mmseg_ext.__version__
EXPERIMENTS = {path.stem: path for path in CONFIGS.glob("*.py")}


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    return copy_sources(tmp_path_factory.mktemp("clone"))


def copy_sources(folder: Path) -> Path:
    """Copy the repository without its environment, builds and links."""
    ignored = shutil.ignore_patterns("__pycache__", ".mim")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in FILES:
        shutil.copy2(ROOT / name, folder / name)
    return folder


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build a distribution as pip does, in this environment, and return its path."""
    code = f"import sys; from setuptools import build_meta as b; b.build_{kind}(sys.argv[1])"
    folder.mkdir()
    command = [sys.executable, "-c", code, folder]
    result = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(clone, tmp_path_factory) -> Path:
    """The unpacked sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    expected = files_of(clone)
    with tarfile.open(build("sdist", clone, folder / "made")) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / f"mmseg_ext-{VERSION}"
    assert expected - files_of(unpacked) == set()
    return unpacked


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory) -> Path:
    """The wheel of the sdist, unpacked as pip would."""
    (sdist / "build/lib/mmseg_ext/.mim/configs").mkdir(parents=True)  # an earlier build's
    (sdist / "build/lib/mmseg_ext/.mim/configs/removed.py").write_text("")
    folder = tmp_path_factory.mktemp("wheel")
    file = build("wheel", sdist, folder / "made")
    assert file.name == f"mmseg_ext-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_a_wheel_contains_the_package_and_mims_files(wheel):
    """The wheel is built from the sdist, which contains the repository."""
    names, information = files_of(wheel), f"mmseg_ext-{VERSION}.dist-info"
    scripts = (wheel / information / "entry_points.txt").read_text()
    assert "mmseg-ext = mmseg_ext_cli:main" in scripts
    modules = (ROOT / "mmseg_ext").rglob("*.py")
    own = {str(path.relative_to(ROOT)) for path in modules if ".mim" not in path.parts}
    assert own <= names
    assert {f"mmseg_ext/doctor/parity/{path.name}" for path in FOLDER.glob("*.npz")} <= names
    assert not [name for name in names if name.endswith((".pth", ".safetensors"))]
    assert sum(name.endswith("/LICENSE") for name in names) == 1 and "mmseg_ext/py.typed" in names
    parts = {
        str(path.relative_to(ROOT))
        for top in ("configs", "tools", "demo")
        for path in (ROOT / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    prefix = "mmseg_ext/.mim/"
    found = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    assert found == parts - {"demo/street.jpg"} | {"model-index.yml"}
    top = {name.split("/")[0] for name in names}
    assert top == {"mmseg_ext", "mmseg_ext_cli.py", information}


def test_the_wheels_description_stands_alone(wheel):
    """On PyPI each link of the README leads to the file of this version."""
    text = (wheel / f"mmseg_ext-{VERSION}.dist-info/METADATA").read_bytes()
    metadata = message_from_bytes(text)
    extras, needed = metadata.get_all("Provides-Extra"), metadata.get_all("Requires-Dist")
    assert "export" in extras and any(line.startswith("onedl-mmcv") for line in needed)
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    assert {"Documentation", "Source", "Issues", "Changelog"} <= set(urls)
    assert "Typing :: Typed" in metadata.get_all("Classifier") and metadata["Author"]
    description = metadata.get_payload(decode=True).decode()
    links = re.findall(r"(?:\]\(|src=\"|href=\")([^)\"\s]+)", description)
    there = [
        re.fullmatch(rf"{urls['Source']}/(?:blob|raw)/v{VERSION}/(.+)", link) for link in links
    ]
    assert sum(map(bool, there)) > 10
    assert all((ROOT / match[1].partition("#")[0]).exists() for match in there if match)
    assert all(link.startswith(("https://", "#")) for link in links)


def test_a_wheel_says_where_its_configs_are(wheel, tmp_path):
    """Standard output contains only the path, from any folder."""
    result = subprocess.run(
        [sys.executable, "-m", "mmseg_ext", "where"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
    )
    assert result.stdout == f"{wheel}/mmseg_ext/.mim/configs\n"
    assert Config.fromfile(f"{result.stdout.strip()}/ea_r18_shapes.py").model


def test_new_project_from_a_wheel_in_an_empty_folder(wheel, tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for i in range(3):
            pixels = np.arange(64, dtype=np.uint8).reshape(8, 8) // 32
            Image.fromarray(pixels).save(tmp_path / kind / f"{i}.png")
    command = "-m mmseg_ext new_project mine --images images --masks masks"
    result = subprocess.run(
        [sys.executable, *command.split()],
        **dict(cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(wheel)}, text=True),
        capture_output=True,
    )
    assert result.returncode == 0, result.stderr
    config = Config.fromfile(tmp_path / "mine/config.py")
    assert config.runner_type == "DurableRunner" and config.train_cfg.max_iters == 600
    assert len(list((tmp_path / "mine/data/annotations").rglob("*.png"))) == 3


def test_an_editable_installation_links_mims_files(clone, tmp_path):
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
