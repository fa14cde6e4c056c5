"""Which checkpoints stay: a table of cases."""

import pytest

from mmseg_ext.durable.work_dir import replaced_checkpoints, series_of

ITER = "iter_{}.pth"
# names of the folder, template, step, kept, best; removed: what replaces it
CASES = {
    "the oldest of three": (
        "iter_2.pth iter_4.pth iter_6.pth",
        ITER,
        6,
        [4, 6],
        "",
        {"iter_2.pth": "iter_6.pth"},
    ),
    "all are kept": ("iter_2.pth iter_4.pth", ITER, 4, [], "", {}),
    "the new one is not there": ("iter_2.pth iter_4.pth", ITER, 6, [6], "", {}),
    "later ones of a resumed run": (
        "iter_2.pth iter_4.pth iter_8.pth",
        ITER,
        4,
        [4],
        "",
        {"iter_2.pth": "iter_4.pth"},
    ),
    "an older best one": (
        "best_mIoU_iter_2.pth best_mIoU_iter_4.pth iter_4.pth",
        ITER,
        4,
        [4],
        "best_mIoU_iter_4.pth",
        {"best_mIoU_iter_2.pth": "best_mIoU_iter_4.pth"},
    ),
    "the best one is older": (
        "best_mIoU_iter_2.pth iter_2.pth iter_4.pth",
        ITER,
        4,
        [4],
        "best_mIoU_iter_2.pth",
        {"iter_2.pth": "iter_4.pth"},
    ),
    "two scores": (
        "best_mIoU_iter_2.pth best_IoU.a_iter_2.pth best_mIoU_iter_4.pth",
        ITER,
        4,
        [],
        "best_mIoU_iter_4.pth best_IoU.a_iter_2.pth",
        {"best_mIoU_iter_2.pth": "best_mIoU_iter_4.pth"},
    ),
    "a score that is not kept": (
        "best_mIoU_iter_2.pth best_a_iter_4.pth",
        ITER,
        4,
        [],
        "best_a_iter_4.pth",
        {},
    ),
    "files of others": ("iter_x.pth iter_2.pt weights.pth iter_2.pth.txt", ITER, 4, [4], "", {}),
    "epochs": (
        "epoch_1.pth epoch_2.pth iter_1.pth",
        "epoch_{}.pth",
        2,
        [2],
        "",
        {"epoch_1.pth": "epoch_2.pth"},
    ),
    "zeros, another suffix": (
        "000004.ckpt 000010.ckpt best_a_000004.ckpt",
        "{:06d}.ckpt",
        10,
        [10],
        "best_a_000004.ckpt",
        {"000004.ckpt": "000010.ckpt"},
    ),
    "a digit after the number": (
        "iter+2_v2.pth iter+4_v2.pth",
        "iter+{}_v2.pth",
        4,
        [4],
        "",
        {"iter+2_v2.pth": "iter+4_v2.pth"},
    ),
    "an empty folder": ("", ITER, 4, [4], "best_mIoU_iter_4.pth", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_which_checkpoints_are_replaced(case):
    names, template, step, kept, best, expected = CASES[case]
    replaced = replaced_checkpoints(names.split(), template, step, kept, best.split())
    assert replaced == expected


def test_series():
    assert series_of("best_IoU.a_iter_500.pth", ITER) == ("best_IoU.a_", 500)
    assert series_of("iter_500.pth", ITER) == ("", 500)
    assert series_of("iter_500.pth.tmp", ITER) is None
