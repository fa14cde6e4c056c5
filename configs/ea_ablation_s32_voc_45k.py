# Ablation of the memory size S (the paper's table on VOC): S = 32.
# Everything else is as in ea_r101_voc_45k.py, which has S = 64.
_base_ = "./ea_r101_voc_45k.py"
model = dict(decode_head=dict(memory_size=32))
