# The twin of deepvit_16b_imagenet_300e.py with plain attention.
_base_ = [
    "./_base_/classifier.py",
    "./_base_/imagenet_224.py",
    "./_base_/deepvit_300e.py",
    "./_base_/default_runtime.py",
]
model = dict(
    data_preprocessor=dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5]),
    backbone=dict(type="DeepViT", arch="16b", re_attention=False, drop_path_rate=0.2),
)
