"""Claims of the docs, and what the results of a run say about each."""

from collections.abc import Callable
from typing import NamedTuple


class Claim(NamedTuple):
    """A sentence, its page, and the check of the rows of a stage that begin with these texts."""

    text: str
    page: str
    stage: str
    begin: dict[str, str | tuple[str, ...]]
    check: Callable[[dict], bool]

    def verdict(self, results: dict) -> str:
        """Return 'confirmed', 'CONTRADICTED' with the number of rows, or 'not reached'."""
        found = [
            row
            for row in results["stages"].get(self.stage, {}).get("rows", [])
            if "skipped" not in row
            and all(str(row.get(key, "")).startswith(text) for key, text in self.begin.items())
        ]
        wrong = 0
        for row in found:
            try:
                wrong += not self.check(row)
            except (
                ArithmeticError,
                LookupError,
                TypeError,
                ValueError,
            ):  # a failed row, or one without the column
                wrong += 1
        if not found:
            return "not reached"
        return f"CONTRADICTED ({wrong} of {len(found)})" if wrong else f"confirmed ({len(found)})"


def number(row: dict, column: str) -> float:
    """Return the first number of a cell."""
    return float(str(row[column]).replace(",", "").replace("%", "").split()[0])


def ok(row: dict) -> bool:
    return row["status"] == "ok"


def few_labels_differ(row: dict) -> bool:
    different, _, total, _ = row["differs"].replace(",", "").split()
    return int(different) <= 1e-4 * int(total)


def loss_is_equal(row: dict) -> bool:
    loss, gradient = (float(part.split()[-1]) for part in row["differs"].split(","))
    return loss <= 1e-5 and gradient <= 1e-4


def memory_is_computed(row: dict) -> bool:
    return abs(number(row, "peak GiB") / number(row, "model_cost, GiB") - 1) <= 0.1


def no_line(row: dict) -> bool:
    return row["training"] == row["test"] == "none"


_DIGITS = tuple("0123456789")
_RESUME = {"check": "killed after"}
_SECOND = {"check": "the second is killed"}
_SLOWER = {"way": "EA, published"}
CLAIMS = [
    Claim(
        "layers and backbones compute the published outputs",
        "README",
        "parity",
        {"check": "parity"},
        ok,
    ),
    Claim(
        "gradients are equal in repeated deterministic steps",
        "reliability",
        "parity",
        {"check": "training"},
        ok,
    ),
    Claim(
        "every head and backbone trains with randomness.deterministic=True",
        "reliability",
        "parity",
        {"check": "deterministic=True"},
        ok,
    ),
    Claim(
        "strips give mmsegmentation's labels",
        "class_maps",
        "strips",
        {"differs": _DIGITS},
        few_labels_differ,
    ),
    Claim(
        "strips give mmsegmentation's loss and gradients",
        "class_maps",
        "strips",
        {"differs": "loss"},
        loss_is_equal,
    ),
    Claim(
        "strips are at least as fast as EncoderDecoder",
        "class_maps",
        "strips",
        {},
        lambda row: number(row, "stock / strips") >= 1,
    ),
    Claim(
        "strips need less memory",
        "class_maps",
        "strips",
        {},
        lambda row: number(row, "strips, MiB") < number(row, "stock, MiB"),
    ),
    Claim(
        "EA composed is faster than its published order",
        "external_attention",
        "layers",
        _SLOWER,
        lambda row: number(row, "over the first") > 1,
    ),
    Claim(
        "Manhattan attention is faster than its plain form",
        "rmt",
        "layers",
        {"layer": "Manhattan", "way": "plain"},
        lambda row: number(row, "over the first") > 1,
    ),
    Claim(
        "re-attention in blocks is faster than step by step",
        "deepvit",
        "layers",
        {"layer": "re-attention", "way": "plain"},
        lambda row: number(row, "over the first") > 1,
    ),
    Claim(
        "the lambda layer is faster than its plain formulation",
        "lambda",
        "layers",
        {"layer": "lambda", "way": "plain"},
        lambda row: number(row, "over the first") > 1,
    ),
    Claim(
        "model_cost --train computes the peak of a step within 10 %",
        "several_gpus",
        "steps",
        {"variant": ("TF32", "bfloat16"), "model_cost, GiB": _DIGITS, "peak GiB": _DIGITS},
        memory_is_computed,
    ),
    Claim(
        "a killed training resumes bit by bit",
        "reliability",
        "training",
        _RESUME,
        lambda row: row["different"] == 0,
    ),
    Claim(
        "ea_r18_shapes reaches the CPU's mIoU of 75.0 within 3",
        "model_zoo",
        "training",
        {"check": "ea_r18_shapes"},
        lambda row: abs(number(row, "mIoU") - 75.0) <= 3,
    ),
    Claim(
        "bfloat16 gives at least 99 % equal labels",
        "prediction",
        "inference",
        {"way": "batch 1, amp"},
        lambda row: number(row, "same labels as the first") >= 99,
    ),
    Claim(
        "batches give the labels of single images",
        "prediction",
        "inference",
        {"way": "batch 16"},
        lambda row: number(row, "same labels as the first") >= 99,
    ),
    Claim(
        "a model on the GPU exports to ONNX with its scores",
        "export",
        "inference",
        {"way": "export"},
        lambda row: number(row, "difference") <= 1e-4,
    ),
    Claim(
        "two processes with SyncBN train as one with their batches",
        "several_gpus",
        "several",
        {"check": "weights"},
        lambda row: number(row, "difference") <= 1e-3,
    ),
    Claim(
        "two processes score as one",
        "several_gpus",
        "several",
        {"check": "scores"},
        lambda row: row["equal"] is True,
    ),
    Claim(
        "a job of which a process was killed restarts bit by bit",
        "several_gpus",
        "several",
        _SECOND,
        lambda row: row["different"] == 0,
    ),
    Claim("layers and losses do not wait for the GPU", "CONTRIBUTING", "syncs", {}, no_line),
]
