"""Private names of mmengine: the workers of a run's loaders stop."""

from types import SimpleNamespace

from mmengine.runner.loops import _InfiniteDataloaderIterator
from torch.utils.data import DataLoader

from mmseg_ext.upstream import shut_down_workers


def test_persistent_workers_stop():
    """Those of a loader that a loop iterates, and of the endless iterator of training."""
    loaders = [DataLoader([0, 1], num_workers=1, persistent_workers=p) for p in (False, True)]
    endless = _InfiniteDataloaderIterator(loaders[0])
    next(endless)
    iterators = [endless._iterator, iter(loaders[1])]  # or the garbage collector would stop them
    workers = [iterator._workers[0] for iterator in iterators]
    assert all(worker.is_alive() for worker in workers)
    train = SimpleNamespace(dataloader=loaders[0], dataloader_iterator=endless)
    validation = SimpleNamespace(dataloader=loaders[1])
    shut_down_workers(SimpleNamespace(_train_loop=train, _val_loop=validation, _test_loop={}))
    for worker in workers:
        worker.join(10)
        assert not worker.is_alive()
    assert next(iter(loaders[1])).tolist() == [0]  # by a new worker
