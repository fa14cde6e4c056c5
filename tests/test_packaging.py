"""What an installation holds: `.mim` in a wheel and in an editable installation, and the metafiles.

Both are built from a copy of the repository by the build backend, without network.
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
from mmseg_ext.doctor.fixtures import FOLDER
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
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".mim")
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy2(source, folder / name)
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


def mim_files() -> set[str]:
    """What `.mim` must hold: every config, tool and demo of the repository, and the index."""
    return {
        str(path.relative_to(ROOT))
        for top in ("configs", "tools", "demo")
        for path in (ROOT / top).rglob("*")
        if path.is_file() and path.suffix in (".py", ".sh", ".yml")
    } | {"model-index.yml"}


def test_a_wheel_holds_the_package_and_what_mim_looks_for(clone, tmp_path):
    (clone / "build/lib/mmseg_ext/.mim/configs").mkdir(parents=True)  # an earlier build's
    (clone / "build/lib/mmseg_ext/.mim/configs/removed.py").write_text("")
    wheel = build("wheel", clone, tmp_path / "wheels")
    assert wheel.name == f"mmseg_ext-{mmseg_ext.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        sizes = {i.filename: i.file_size for i in archive.infolist()}
        licence = [name for name in names if name.endswith("/LICENSE")]
        metadata, scripts = (
            archive.read(next(n for n in names if n.endswith(end))).decode()
            for end in ("/METADATA", "/entry_points.txt")
        )
    fixtures = [n for n in names if n.startswith("mmseg_ext/doctor/parity/")]
    assert len(fixtures) == len(list(FOLDER.glob("*.npz"))) > 0
    assert sum(sizes[name] for name in fixtures) < 8e6
    # openmim looks into the package, its maintained successor into RECORD's first folder.
    for folder in ("mmseg_ext", sorted(names)[0].split("/")[0]):
        prefix = f"{folder}/.mim/"
        assert {n.removeprefix(prefix) for n in names if n.startswith(prefix)} == mim_files()
    assert "mmseg_ext/py.typed" in names
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "mmseg_ext").rglob("*.py")}
    assert {m for m in modules if "/.mim/" not in m} <= names
    assert {name.split("/")[0] for name in names} == {
        "mmseg_ext",
        f"mmseg_ext-{mmseg_ext.__version__}.dist-info",
    }
    assert len(licence) == 1 and "mmseg-ext = mmseg_ext.__main__:main" in scripts
    assert "Provides-Extra: export" in metadata and "Requires-Dist: onedl-mmcv" in metadata


def test_an_editable_installation_links_what_mim_looks_for(clone, tmp_path):
    site_packages = tmp_path / "site-packages"
    with zipfile.ZipFile(build("editable", clone, tmp_path / "wheels")) as wheel:
        wheel.extractall(site_packages)
    code = (
        f"import site; site.addsitedir({str(site_packages)!r})\n"
        "import importlib.util as u; print(u.find_spec('mmseg_ext').origin)"
    )
    found = subprocess.run(  # -S: without this environment's own installation
        [sys.executable, "-SE", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    package = Path(found.stdout.strip()).parent
    assert package == clone / "mmseg_ext"
    mim = package / ".mim"
    assert {str(p.relative_to(clone)) for p in clone.iterdir() if (mim / p.name).exists()} == {
        "configs",
        "demo",
        "tools",
        "model-index.yml",
    }
    (clone / "configs/new_config.py").write_text("a = 1\n")
    assert Config.fromfile(mim / "configs" / "new_config.py").a == 1  # a link, not a copy
    index = yaml.safe_load((mim / "model-index.yml").read_text())
    assert all((mim / name).is_file() for name in index["Import"])


def metafiles() -> dict[str, dict]:
    index = yaml.safe_load((ROOT / "model-index.yml").read_text())
    assert sorted(index["Import"]) == sorted(
        str(path.relative_to(ROOT)) for path in CONFIGS.rglob("*.yml")
    )
    return {name: yaml.safe_load((ROOT / name).read_text()) for name in index["Import"]}


def test_every_config_stands_in_one_metafile():
    listed = [model["Name"] for content in metafiles().values() for model in content["Models"]]
    assert sorted(listed) == sorted(EXPERIMENTS)


def test_metafiles_say_what_the_configs_say():
    checked = 0
    trained_here = results("miou")["trained here"]
    for content in metafiles().values():
        (collection,) = content["Collections"]
        assert (ROOT / collection["README"]).is_file()
        assert collection["Paper"]["URL"].startswith("https://arxiv.org/abs/")
        if "Code" in collection:
            assert (ROOT / collection["Code"]["URL"]).is_file()
        for model in content["Models"]:
            assert model["In Collection"] == collection["Name"]
            assert model["Config"] == f"configs/{model['Name']}.py"
            config = Config.fromfile(EXPERIMENTS[model["Name"]])
            metadata = model["Metadata"]
            assert metadata["Batch Size"] == config.auto_scale_lr.base_batch_size
            assert metadata["Iterations"] == config.train_cfg.max_iters
            assert metadata["Architecture"] == [
                config.model.backbone.type,
                config.model.decode_head.type,
            ]
            trained = model["Name"] in trained_here
            assert (metadata["Training Resources"] == "not trained here") != trained
            for result in model["Results"]:
                assert result["Task"] == "Semantic Segmentation"
                assert result["Dataset"] == metadata["Training Data"]
                assert trained or not result["Metrics"]
            checked += 1
    assert checked == len(EXPERIMENTS)
