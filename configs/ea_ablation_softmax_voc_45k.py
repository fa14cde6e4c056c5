# Ablation of the normalisation (the paper's table on VOC): one softmax over the memory slots
# instead of the double normalisation. The protocol is that of ea_r101_voc_45k.py.
_base_ = "./ea_r101_voc_45k.py"
model = dict(decode_head=dict(normalization="softmax"))
