# EAMLP's recipe, which is T2T-ViT's (EANet's args.yaml of EAMLP-7 at 384): a rate of 1e-3 for 64
# images per process, here for 8 processes; 300 epochs and ten at the lowest rate.
_base_ = "./rmt_300e.py"
optim_wrapper = dict(optimizer=dict(weight_decay=0.03))
train_cfg = dict(max_epochs=310)
auto_scale_lr = dict(base_batch_size=512)
