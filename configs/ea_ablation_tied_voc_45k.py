# Ablation of the memories: one memory for keys and values, the paper's Eq. 5-6 instead of 7-8.
# Everything else is as in ea_r101_voc_45k.py.
_base_ = "./ea_r101_voc_45k.py"
model = dict(decode_head=dict(tied=True))
