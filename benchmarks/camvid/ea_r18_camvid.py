# EANet: 64 slots, double normalization, from scratch: docs/camvid.md.
_base_ = "./_base_/r18-d8.py"
model = dict(decode_head=dict(type="EAHead", ea_channels=128, memory_size=64))
optim_wrapper = dict(type="OptimWrapper")  # float32, which is faster on a CPU without AVX512-BF16
