# Ablation of the normalization (the paper's table on VOC): one softmax over the memory slots
# instead of the double normalization. Everything else is as in ea_r101_voc_45k.py.
_base_ = "./ea_r101_voc_45k.py"
model = dict(decode_head=dict(normalization="softmax"))
