"""mmdetection's `CocoDataset`, refusing what it reads as fewer classes, other classes or no masks,
and with it the embedded scenes.

It needs mmdetection and is imported by the configs under configs/detection, not by `mmseg_ext`.
"""

from mmseg_ext.datasets.shapes import METAINFO, Recipe
from mmseg_ext.detection.shapes_coco import annotate
from mmseg_ext.environment import require_package
from mmseg_ext.errors import LabelError

require_package("mmdet", extra="det")

from mmdet.datasets import CocoDataset  # noqa: E402
from mmdet.datasets.api_wrappers import COCO  # noqa: E402
from mmdet.registry import DATASETS  # noqa: E402


@DATASETS.register_module()
class CheckedCocoDataset(CocoDataset):
    """As `CocoDataset`, with its arguments.

    mmdetection numbers the classes in the file's order, whatever the order of `metainfo`, and
    drops those that the file does not have; a pipeline with `poly2mask=False` ignores every object
    whose mask is run lengths, and trains with a loss of zero.

    Raises:
        LabelError: if the file's categories, as far as they are among the classes, are not the
            classes in their order; if the pipeline wants masks and an object has none; if it wants
            polygons and an object has run lengths. Objects that are ignored anyway may.
    """

    def COCOAPI(self, path: str) -> COCO:
        """The file, read and looked through: what mmdetection calls for it."""
        coco = super().COCOAPI(path)
        classes = list(self.metainfo["classes"])
        names = [category["name"] for category in coco.dataset.get("categories", [])]
        found = [name for name in names if name in classes]
        if found != classes:
            raise LabelError(
                f"{self.ann_file}: its categories {', '.join(map(str, names)) or '(none)'} must "
                f"hold, in this order, the classes {', '.join(classes)}; name the file's with "
                "dataset.metainfo=dict(classes=...), and in the evaluator's data the same"
            )
        return coco

    def load_data_list(self) -> list[dict]:
        data = super().load_data_list()
        loading = [t for t in self._steps if type(t).__name__ == "LoadAnnotations"]
        if any(getattr(t, "with_mask", False) for t in loading):
            polygons_only = any(not t.poly2mask for t in loading)
            for image in data:
                self._require_masks(image, polygons_only)
        return data

    @property
    def _steps(self) -> list:
        return getattr(self.pipeline, "transforms", [])

    def _require_masks(self, image: dict, polygons_only: bool) -> None:
        for instance in image["instances"]:
            if instance["ignore_flag"]:
                continue
            mask = instance.get("mask")
            if not mask:
                raise LabelError(
                    f"{self.ann_file}: an object of {image['img_path']} has no segmentation, and "
                    "the pipeline's LoadAnnotations has with_mask=True"
                )
            if polygons_only and isinstance(mask, dict):
                raise LabelError(
                    f"{self.ann_file}: an object of {image['img_path']} has its mask as run "
                    "lengths, which LoadAnnotations(poly2mask=False) ignores; leave poly2mask out"
                )


@DATASETS.register_module()
class ShapesCocoDataset(CheckedCocoDataset):
    """The embedded scenes; those that are not in `data_root` yet are made with their annotations.

    Args:
        recipe: The fields of `shapes.Recipe`; every split in one folder must name the same.
        kwargs: As for `CocoDataset`.

    Raises:
        FileExistsError: if `data_root` holds something else or another recipe's scenes.
    """

    METAINFO = {name: values[1:] for name, values in METAINFO.items()}  # no background

    def __init__(self, data_root: str = "data/shapes", recipe: dict | None = None, **kwargs):
        annotate(data_root, Recipe(**(recipe or {})))
        super().__init__(data_root=data_root, **kwargs)
