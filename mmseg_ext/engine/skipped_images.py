"""Counting the unreadable images that a config lets training skip, when it ends or is stopped."""

from collections import Counter
from pathlib import Path

from mmengine import dist
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmseg_ext.datasets.checked_image import image_loaders


@HOOKS.register_module()
class SkippedImagesHook(Hook):
    """Report what `CheckedLoadImage(on_unreadable='skip')` has skipped, on all processes together.

    The log gets one warning with the counts, and `skipped_images.txt` in the run's log folder one
    line per file: how many times it was skipped, its path and the reason. A run that a signal
    stops reports, too; after `--resume` the new log folder has what came later.

    Raises:
        ValueError: at the start of validation or testing, if its dataset skips images: the score
            would be of other images than the data's.
    """

    def before_val(self, runner) -> None:
        _refuse_skipping(runner.val_dataloader, "val_dataloader")

    def before_test(self, runner) -> None:
        _refuse_skipping(runner.test_dataloader, "test_dataloader")

    def after_train(self, runner) -> None:
        self.report(runner)

    def report(self, runner) -> None:
        """What this start of the run has skipped; all processes must call it."""
        lines: list[str] = []
        for loader in image_loaders(runner.train_dataloader.dataset):
            journal = Path(loader.journal)
            if journal.exists():
                lines += journal.read_text().splitlines()
                journal.unlink()
        parts = dist.all_gather_object(lines)
        skipped = Counter(line for part in parts for line in part)
        if not skipped or not dist.is_main_process():
            return
        report = Path(runner.log_dir) / "skipped_images.txt"
        report.write_text("".join(f"{n}\t{line}\n" for line, n in skipped.most_common()))
        runner.logger.warning(
            f"{len(skipped)} unreadable images were skipped, {skipped.total()} times in all: "
            f"{report} names them"
        )


def _refuse_skipping(dataloader, name: str) -> None:
    if any(loader.on_unreadable == "skip" for loader in image_loaders(dataloader.dataset)):
        raise ValueError(
            f"{name}: on_unreadable='skip' would score other images in place of unreadable ones; "
            "leave it to train_dataloader"
        )
