"""mmdetection's `CocoDataset` with checks, and the embedded scenes as a COCO dataset.

The module needs mmdetection. The configs in configs/detection import it; `mmseg_ext` does not.
"""

from pathlib import Path

from mmseg_ext.datasets.shapes import METAINFO, Recipe
from mmseg_ext.detection.shapes_coco import annotate
from mmseg_ext.environment import require_package
from mmseg_ext.errors import LabelError, MissingDataError

require_package("mmdet", extra="det")

from mmdet.datasets import CocoDataset  # noqa: E402
from mmdet.datasets.api_wrappers import COCO  # noqa: E402
from mmdet.registry import DATASETS  # noqa: E402


@DATASETS.register_module()
class CheckedCocoDataset(CocoDataset):
    """`CocoDataset` that refuses files which it would read incorrectly.

    `CocoDataset` numbers the classes in the file's order, not in the order of `metainfo`, and drops
    classes that the file does not have. With `poly2mask=False` it ignores objects whose mask is run
    lengths, and trains with a mask loss of zero.

    Raises:
        MissingDataError: if there is no such file.
        LabelError: if the file's categories do not contain the classes in their order; if the
            pipeline loads masks and an object has none; if it loads polygons and an object has run
            lengths. Ignored objects are not checked.
    """

    def COCOAPI(self, path: str) -> COCO:
        """Read the file and check its categories; mmdetection calls this."""
        if not Path(path).is_file():
            raise MissingDataError(
                f"{path}: does not exist; unpack the dataset into {self.data_root or '.'}, with "
                "annotations/ and a folder of images for each split, such as train2017/"
            )
        coco = super().COCOAPI(path)
        classes = list(self.metainfo["classes"])
        names = [category["name"] for category in coco.dataset.get("categories", [])]
        found = [name for name in names if name in classes]
        if found != classes:
            raise LabelError(
                f"{self.ann_file}: its categories ({', '.join(map(str, names)) or 'none'}) do not "
                f"contain the classes {', '.join(classes)} in this order; set the file's order in "
                "dataset.metainfo=dict(classes=...)"
            )
        return coco

    def load_data_list(self) -> list[dict]:
        data = super().load_data_list()
        loads_masks = polygons_only = False
        for step in getattr(self.pipeline, "transforms", []):
            if getattr(step, "with_mask", False):
                loads_masks = True
                polygons_only |= not step.poly2mask
        if loads_masks:
            for image in data:
                self._check_masks(image, polygons_only)
        return data

    def _check_masks(self, image: dict, polygons_only: bool) -> None:
        masks = [each.get("mask") for each in image["instances"] if not each["ignore_flag"]]
        if not all(masks):
            raise LabelError(
                f"{self.ann_file}: an object of {image['img_path']} has no segmentation; set "
                "with_mask=False in the pipeline's LoadAnnotations"
            )
        if polygons_only and any(isinstance(mask, dict) for mask in masks):
            raise LabelError(
                f"{self.ann_file}: the mask of an object of {image['img_path']} is run "
                "lengths, which LoadAnnotations(poly2mask=False) ignores; remove poly2mask"
            )


@DATASETS.register_module()
class ShapesCocoDataset(CheckedCocoDataset):
    """The embedded scenes, which are generated in `data_root` with their annotations.

    Args:
        recipe: fields of `shapes.Recipe`, the same for all splits in a folder.
        kwargs: arguments of `CocoDataset`.

    Raises:
        FileExistsError: if `data_root` contains other files, or scenes of another recipe.
    """

    # Without the background; mmdetection draws with colors that are tuples.
    METAINFO = {
        "classes": METAINFO["classes"][1:],
        "palette": [tuple(color) for color in METAINFO["palette"][1:]],
    }

    def __init__(self, data_root: str = "data/shapes", recipe: dict | None = None, **kwargs):
        annotate(data_root, Recipe(**(recipe or {})))
        super().__init__(data_root=data_root, **kwargs)
