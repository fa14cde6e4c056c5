# DANet on ImageNet features: docs/camvid.md.
_base_ = "./_base_/efficientnet-d8.py"
model = dict(decode_head=dict(type="DAHead", pam_channels=16))
optim_wrapper = dict(type="OptimWrapper")  # float32, which is faster on a CPU without AVX512-BF16
