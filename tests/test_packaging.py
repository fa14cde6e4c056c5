"""Contents of the sdist, the wheel and an editable installation; the metafiles.

The build backend builds them from a copy of the repository, without network.
"""

import os
import re
import shutil
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path, PurePath

import pytest
import yaml
from mmengine.config import Config
from PIL import Image

import mmseg_ext
from benchmarks.docs_tables import results
from mmseg_ext.inference.models import DEFAULT  # the weights in the wheel
from tests.commands.test_tools import write_command
from tests.configs import CONFIGS, load
from tests.engine.runs import ROOT, copy_tree, run

FOLDERS = ("benchmarks", "configs", "demo", "docs", "mmseg_ext", "projects", "tests", "tools")
FOLDERS += ("weights", ".ci", ".github")
FILES = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile")
FILES += ("README.md", "constraints.txt", "mkdocs.yml", "model-index.yml", "pyproject.toml")
FILES += ("setup.py", "REUSE.toml", "SECURITY.md")
VERSION = mmseg_ext.__version__
FREE = {"Apache-2.0", "CC0-1.0"}  # the licenses of what is distributed
NAME = f"mmseg_attention-{VERSION}"  # of the distribution


def license_of(name: str) -> str:
    """Return the license that REUSE.toml gives a file."""
    tomllib, found = pytest.importorskip("tomllib"), []  # Python 3.11
    for entry in tomllib.loads((ROOT / "REUSE.toml").read_text())["annotations"]:
        paths = [entry["path"]] if isinstance(entry["path"], str) else entry["path"]
        if any(path == "**" or PurePath(name).match(path) for path in paths):
            found.append(entry["SPDX-License-Identifier"])
    return found[-1]


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """The repository without its environment, builds and links."""
    folder = tmp_path_factory.mktemp("clone")
    ignored = shutil.ignore_patterns("__pycache__", ".mim")
    for name in FOLDERS:
        copy_tree(ROOT / name, folder / name, ignored)
    for name in FILES:
        shutil.copy2(ROOT / name, folder / name)
    return folder


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build a distribution as pip does, in this environment, and return its path."""
    code = f"import sys; from setuptools import build_meta as b; b.build_{kind}(sys.argv[1])"
    folder.mkdir()
    result = run(sys.executable, "-c", code, folder, folder=source)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(clone, tmp_path_factory) -> Path:
    """The unpacked sdist: the repository without the files for non-commercial use only."""
    folder, files = tmp_path_factory.mktemp("sdist"), files_of(clone)
    expected = {name for name in files if license_of(name) in FREE}
    assert {PurePath(name).suffix for name in files - expected} == {".pth", ".jpg"}
    with tarfile.open(build("sdist", clone, folder / "made")) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / NAME
    assert files_of(unpacked) >= expected
    assert {license_of(name) for name in files_of(unpacked)} <= FREE
    return unpacked


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory) -> Path:
    """The wheel of the sdist, unpacked as pip would."""
    (sdist / "build/lib/mmseg_ext/.mim/configs").mkdir(parents=True)  # an earlier build's
    (sdist / "build/lib/mmseg_ext/.mim/configs/removed.py").write_text("")
    file = build("wheel", sdist, tmp_path_factory.mktemp("wheel") / "made")
    assert file.name == f"{NAME}-py3-none-any.whl"
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder)
    return folder


def test_a_wheel_contains_the_package_and_mims_files(sdist, wheel):
    """The wheel is built from the sdist, which contains the repository."""
    sources, names, information = files_of(sdist), files_of(wheel), f"{NAME}.dist-info"
    scripts = (wheel / information / "entry_points.txt").read_text()
    assert "mmseg-ext = mmseg_ext.commands:main" in scripts
    assert {name for name in sources if name.startswith("mmseg_ext/")} <= names
    weights = {name for name in names if name.endswith((".pth", ".safetensors"))}
    assert weights == {
        f"mmseg_ext/weights/{name}.pth" for name in (DEFAULT, "ea_r18_fpn_nuclei_4k")
    }
    assert sum(name.endswith("/LICENSE") for name in names) == 1
    parts = {name for name in sources if name.split("/")[0] in ("configs", "tools", "demo")}
    assert files_of(wheel / "mmseg_ext/.mim") == parts | {"model-index.yml"}
    assert {license_of(name.removeprefix("mmseg_ext/.mim/")) for name in names} <= FREE
    top = {path.name for path in wheel.iterdir()}
    assert top == {"mmseg_ext", information}


def test_the_wheels_description_stands_alone(wheel):
    """Its links lead to other sites or into the description."""
    metadata = message_from_bytes((wheel / f"{NAME}.dist-info/METADATA").read_bytes())
    extras, needed = metadata.get_all("Provides-Extra"), metadata.get_all("Requires-Dist")
    assert "export" in extras and any(line.startswith("onedl-mmcv") for line in needed)
    description = metadata.get_payload(decode=True).decode()
    links = re.findall(r"(?:\]\(|src=\"|href=\")([^)\"\s]+)", description)
    assert links and all(link.startswith(("https://", "#")) for link in links)


def test_a_wheel_in_an_empty_folder(wheel, tmp_path):
    """Link the configs as a page says, and segment a photo."""
    start = f'exec {sys.executable} -c "from mmseg_ext.commands import main; main()" "$@"'
    command = write_command(tmp_path / "bin", "mmseg-ext", start)
    own = {"PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(wheel)}
    (link,) = re.findall(
        r"^```bash\n(.*?)^```$", (ROOT / "docs/own_head.md").read_text(), re.M | re.S
    )
    shutil.copy(ROOT / "demo/nuclei.png", tmp_path / "IMAGE.png")
    result = run("bash", "-c", f"{link}mmseg-ext image_demo IMAGE.png", folder=tmp_path, **own)
    assert result.returncode == 0 and "Apache-2.0" in result.stdout + result.stderr, result.stderr
    assert (tmp_path / "configs").resolve().is_relative_to(wheel)
    assert Image.open(tmp_path / "outputs/labels/IMAGE.png").size == (347, 260)


def test_the_version_and_its_date_are_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == VERSION
    changes = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (\S+) - (\d{4}-\d\d-\d\d)$", changes, re.M)
    assert versions[0] == (VERSION, str(citation["date-released"]))
    assert len(versions) == changes.count("\n## ") - 1  # all but "Unreleased" have a date


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
            config = load(ROOT / model["Config"])
            types = [config.model.backbone.type, config.model.decode_head.type]
            metadata = model["Metadata"]
            assert metadata["Batch Size"] == config.auto_scale_lr.base_batch_size
            # The CamVid weights were trained longer than the config says.
            iterations = {"ea_r18_fpn_camvid_6k": 15500}.get(model["Name"])
            assert metadata["Iterations"] == (iterations or config.train_cfg.max_iters)
            assert metadata["Architecture"] == types
            trained = model["Name"] in trained_here
            assert (metadata["Training Resources"] == "not trained here") != trained
            for result in model["Results"]:
                assert result["Task"] == "Semantic Segmentation"
                assert result["Dataset"] == metadata["Training Data"]
                assert trained or not result["Metrics"]
    assert sorted(listed) == mmseg_ext.list_models()
