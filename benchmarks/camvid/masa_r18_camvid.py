# Manhattan attention, decomposed, from scratch: docs/camvid.md.
_base_ = "./_base_/r18-d8.py"
model = dict(decode_head=dict(type="MaSAHead", num_heads=4, decomposed=True))
optim_wrapper = dict(type="OptimWrapper")  # float32, which is faster on a CPU without AVX512-BF16
