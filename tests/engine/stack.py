"""Imports for the server of `runs.run_script`: the modules of the tools, and no instances."""

import gc
import os

import matplotlib.pyplot  # noqa: F401  a run's visualizer imports it
import torch
import torch._dynamo  # the first optimizer imports it
import torch.profiler
from mmseg.visualization import SegLocalVisualizer  # noqa: F401
from yapf.yapflib import yapf_api

import mmseg_ext.commands.test
import mmseg_ext.commands.train
import mmseg_ext.engine.build
import mmseg_ext.terminal
from tests.configs import unformatted

yapf_api.FormatCode = unformatted
os.fsync = lambda descriptor: None  # nothing waits for the disk
mmseg_ext.register_all_modules(init_default_scope=False)
torch.set_num_threads(1)
gc.freeze()
