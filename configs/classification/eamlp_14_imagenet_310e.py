# EAMLP-14 on ImageNet-1k; published: 78.9 % top-1.
_base_ = [
    "./_base_/classifier.py",
    "./_base_/imagenet_224.py",
    "./_base_/t2t_310e.py",
    "./_base_/default_runtime.py",
]
model = dict(backbone=dict(type="EAMLP", arch="14", drop_path_rate=0.1))
