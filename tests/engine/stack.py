"""What the server of `runs.run_scripts` holds: everything that a tool imports, built nothing of."""

import gc

import torch
import torch._dynamo  # the first optimizer imports it

from mmseg_ext import register_all_modules

register_all_modules()
torch.set_num_threads(1)
gc.freeze()
