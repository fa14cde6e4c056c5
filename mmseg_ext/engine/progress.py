"""Short lines on the terminal while a run trains. The log file has mmengine's complete lines."""

import time

from mmengine.dist import is_main_process
from mmengine.hooks import Hook, LoggerHook

from mmseg_ext.durable.quiet_terminal import quiet_terminal

# mmengine's lines of each interval and of each validation, and the name of the experiment.
_REPLACED = ("Iter(", "Epoch(", "Exp name:")


class ProgressHook(Hook):
    """Print iteration, loss, speed and time left, as often as `LoggerHook` logs."""

    priority = "VERY_LOW"

    def before_train(self, runner) -> None:
        self.start, self.first = time.perf_counter(), runner.iter
        intervals = [hook.interval for hook in runner.hooks if isinstance(hook, LoggerHook)]
        self.interval = min(intervals, default=50)
        quiet_terminal(runner.logger, _REPLACED)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        done, total = runner.iter + 1, runner.max_iters
        if not is_main_process() or (done % self.interval and done != total):
            return
        loss = runner.message_hub.log_scalars.get("train/loss")
        text = f"  loss {loss.mean(self.interval):.3f}" if loss else ""
        speed = (done - self.first) / (time.perf_counter() - self.start)
        left = round((total - done) / speed)
        hours = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
        count = f"{done:>{len(str(total))}}/{total}"
        print(f"  iteration {count}{text}  {speed:.3g} it/s  {hours} left", flush=True)

    def after_val_epoch(self, runner, metrics: dict[str, float] | None = None) -> None:
        if is_main_process():
            shown = ", ".join(f"{name} {value:g}" for name, value in (metrics or {}).items())
            print(f"  validation: {shown}", flush=True)
