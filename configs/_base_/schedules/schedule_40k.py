# mmsegmentation's SGD schedule of 40k iterations: poly decay of power 0.9 down to 1e-4.
_base_ = "./schedule_160k.py"
param_scheduler = [dict(type="PolyLR", power=0.9, eta_min=1e-4, begin=0, end=40000, by_epoch=False)]
train_cfg = dict(max_iters=40000, val_interval=4000)
