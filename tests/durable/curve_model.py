"""A model of two parameters, its data and its metric: a run takes a fraction of a second.

The score is a function of the weights that goes up and down, so a best checkpoint can be checked.
"""

import math

import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, METRICS, MODELS
from torch import Tensor, nn

CONFIG = """
default_scope = "mmseg"
runner_type = "DurableRunner"
custom_imports = dict(imports=["mmseg_ext", "tests.durable.curve_model"])
model = dict(type="CurveModel")
train_dataloader = dict(
    batch_size=2, num_workers=0, sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(type="RandomNumbers"),
)
val_dataloader = dict(
    batch_size=1, num_workers=0, sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(type="RandomNumbers", length=1),
)
val_evaluator = dict(type="CurveMetric")
optim_wrapper = dict(
    type="OptimWrapper", optimizer=dict(type="SGD", lr=0.1, momentum=0.9), accumulative_counts=3
)
param_scheduler = [dict(type="PolyLR", power=0.9, begin=0, end=100, by_epoch=False)]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=6, val_interval=3)
val_cfg = dict(type="ValLoop")
default_hooks = dict(
    logger=dict(type="LoggerHook", interval=1, log_metric_by_epoch=False),
    checkpoint=dict(
        type="DurableCheckpointHook", by_epoch=False, interval=2, max_keep_ckpts=2,
        save_best="curve", rule="greater",
    ),
    stop_on_signal=dict(type="StopOnSignalHook"),
    run_record=dict(type="RunRecordHook"),
)
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
"""

# Each schedule adds to the config. In all of them the score rises with every validation.
SCHEDULES = {
    "default": "",
    "no best": "default_hooks['checkpoint'].update(save_best=None, rule=None)\n",
    "two scores": "default_hooks['checkpoint'].update(save_best=['curve', 'other'])\n",
    "falling": "default_hooks['checkpoint'].update(save_best='other')\n",
    "changed best": "default_hooks['checkpoint'].update(save_best='other')\n",
    "keep one": "default_hooks['checkpoint'].update(max_keep_ckpts=1)\n",
    "keep all": "default_hooks['checkpoint'].update(max_keep_ckpts=-1)\n",
    "rare": "default_hooks['checkpoint'].update(interval=4)\ntrain_cfg['val_interval'] = 2\n",
    "last": "default_hooks['checkpoint'].update(interval=100)\n",
    "average": "custom_hooks = [dict(type='EMAHook', momentum=0.1)]\n",
    "out_dir": "default_hooks['checkpoint'].update(out_dir='out')\n",
    "one cycle": """
optim_wrapper["accumulative_counts"] = 1
param_scheduler = [dict(type="OneCycleLR", eta_max=0.2, total_steps=50, end=50, by_epoch=False)]
""",
    "passes": """
optim_wrapper["accumulative_counts"] = 1
train_dataloader.update(sampler=dict(type="DefaultSampler", shuffle=True))
train_dataloader["dataset"].update(length=5)
""",
    "epochs": """
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=3, val_interval=1)
train_dataloader.update(sampler=dict(type="DefaultSampler", shuffle=True))
train_dataloader["dataset"].update(length=4)
default_hooks["checkpoint"].update(by_epoch=True, interval=1)
log_processor = dict(by_epoch=True)
""",
}


def score(weight: Tensor) -> float:
    return math.sin(300 * weight.double().sum().item())


@DATASETS.register_module()
class RandomNumbers(torch.utils.data.Dataset):
    """Numbers of an augmentation."""

    metainfo = {"classes": ("a",), "palette": [[0, 0, 0]]}

    def __init__(self, length: int = 8):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index + torch.rand(2)


@MODELS.register_module()
class CurveModel(BaseModel):
    """Fit the numbers, with noise."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, inputs, data_samples=None, mode="tensor"):
        if mode == "predict":
            torch.rand(1)
            return [self.weight.detach().clone()]
        numbers = torch.stack([*inputs]) + torch.rand(2)
        return {"loss": (numbers - self.weight).square().mean()}


@METRICS.register_module()
class CurveMetric(BaseMetric):
    """The score of the weights, and a second one that goes the other way."""

    def process(self, data_batch, data_samples):
        self.results += [score(weight) for weight in data_samples]

    def compute_metrics(self, results):
        return {"curve": results[0], "other": -results[0]}
