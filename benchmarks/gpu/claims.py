"""Claims of the docs, with checks of the results of a run."""

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Claim(NamedTuple):
    """A page and a sentence, and the check of the rows of a stage that begin with these texts."""

    text: str
    stage: str
    begin: Mapping[str, str | tuple[str, ...]]
    check: Callable[[dict], bool]

    def verdict(self, results: dict) -> str:
        """Return 'confirmed', 'CONTRADICTED' with the number of rows, or 'not reached'."""
        rows = results["stages"].get(self.stage, {}).get("rows", [])
        begins = self.begin.items()
        found = [r for r in rows if all(str(r.get(k, "")).startswith(text) for k, text in begins)]
        good = [self._holds(row) for row in found if "skipped" not in row]
        if not good:
            return "not reached"
        wrong = len(good) - sum(good)
        return f"CONTRADICTED ({wrong} of {len(good)})" if wrong else f"confirmed ({len(good)})"

    def _holds(self, row: dict) -> bool:
        try:
            return self.check(row)
        except (ArithmeticError, LookupError, TypeError, ValueError):  # a row that failed
            return False


def number(row: dict, column: str) -> float:
    """Return the first number of a cell."""
    return float(str(row[column]).replace(",", "").replace("%", "").split()[0])


def ok(row: dict) -> bool:
    return row["status"] == "ok"


def is_exact(row: dict) -> bool:
    return row["first start"] == "exit status -9" and row["different"] == 0


def few_labels_differ(row: dict) -> bool:
    different, _, total, _ = row["differs"].replace(",", "").split()
    return int(different) <= 1e-4 * int(total)


def loss_is_equal(row: dict) -> bool:
    loss, gradient = (float(part.split()[-1]) for part in row["differs"].split(","))
    return loss <= 1e-5 and gradient <= 1e-4


def labels_agree(row: dict) -> bool:
    return number(row, "same labels as one by one") >= 99


def stops_in_time(row: dict) -> bool:
    return "nan" in row["stop"] and row["finite weights"] is True


_DIGITS = tuple("0123456789")
_256 = {"strips of MiB": "256"}
_FASTER = ("ADE20K, 512x683, 12 views", "ADE20K, training", "Cityscapes, training")
_LABELS, _LOSSES = {"differs": _DIGITS}, {"differs": "loss"}
CLAIMS = [
    Claim("README: parts compute the published outputs", "parity", {"check": "parity"}, ok),
    Claim(
        "reliability: heads and backbones repeat with randomness.deterministic=True",
        *("parity", {"check": "deterministic=True"}, ok),
    ),
    Claim("class_maps: mmsegmentation's labels", "strips", _LABELS, few_labels_differ),
    Claim("class_maps: mmsegmentation's loss and gradients", "strips", _LOSSES, loss_is_equal),
    Claim(
        "class_maps: strips are faster in training and for twelve views",
        *("strips", {**_256, "case": _FASTER}, lambda row: number(row, "stock / strips") > 1),
    ),
    Claim(
        "gpu: strips take at most 1.6 times as long as EncoderDecoder",
        *("strips", _256, lambda row: number(row, "stock / strips") >= 1 / 1.65),
    ),
    Claim(
        "class_maps: strips need less memory",
        *("strips", {}, lambda row: number(row, "strips, MiB") < number(row, "stock, MiB")),
    ),
    Claim(
        "reliability: a killed training resumes bit by bit",
        *("training", {"check": "killed"}, is_exact),
    ),
    Claim(
        "model_zoo: ea_r18_shapes reaches the CPU's mIoU of 75.0 within 3",
        *("training", {"check": "ea_r18"}, lambda row: abs(number(row, "mIoU") - 75.0) <= 3),
    ),
    Claim(
        "prediction: batches and bfloat16 give at least 99 % equal labels",
        *("inference", {"way": ("batch 16", "batch 1, amp")}, labels_agree),
    ),
    Claim(
        "export: a model on the GPU exports to ONNX with its scores",
        *("inference", {"way": "export"}, lambda row: number(row, "difference") <= 1e-4),
    ),
    Claim(
        "several_gpus: two processes with SyncBN train as a process with both batches",
        *("several", {"check": "weights"}, lambda row: number(row, "difference") <= 1e-3),
    ),
    Claim(
        "several_gpus: two processes score as one",
        *("several", {"check": "scores"}, lambda row: row["equal"] is True),
    ),
    Claim(
        "several_gpus: a job restarts bit by bit after a process was killed",
        *("several", {"check": "the second is killed"}, is_exact),
    ),
    Claim(
        "gpu: a CUDA graph changes no bit of a training",
        *("graph", {"check": "a validation"}, lambda row: row["different"] == 0),
    ),
    Claim(
        "reliability: a loss of nan stops the run before the step",
        *("graph", {"check": "a loss of nan"}, stops_in_time),
    ),
    Claim(
        "CONTRIBUTING: layers and losses do not wait for the GPU",
        *("syncs", {}, lambda row: "mmseg_ext/" not in row["training"] + row["test"]),
    ),
]
