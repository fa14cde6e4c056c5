# DeepViT's recipe (zhoudaquan/dvit_repo): RMT's with a rate of 5e-4 for 32 images per process. The
# number of processes is not published; here the rate belongs to 256 images.
_base_ = "./rmt_300e.py"
optim_wrapper = dict(optimizer=dict(lr=5e-4))
auto_scale_lr = dict(base_batch_size=256)
