"""Private names of mmengine: the workers of a run's loaders stop."""

from types import SimpleNamespace

from torch.utils.data import DataLoader

from mmseg_ext.upstream import shut_down_workers


def test_persistent_workers_stop():
    loader = DataLoader([0, 1], num_workers=1, persistent_workers=True)
    next(iter(loader))
    (worker,) = loader._iterator._workers
    loop = SimpleNamespace(dataloader=loader)
    shut_down_workers(SimpleNamespace(_train_loop=loop, _val_loop={}, _test_loop={}))
    worker.join(10)
    assert loader._iterator is None and not worker.is_alive()
