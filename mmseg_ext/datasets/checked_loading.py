"""Label maps that are what mmsegmentation's `LoadAnnotations` gives, or an error by their name."""

from functools import lru_cache

from mmseg.datasets.transforms import LoadAnnotations
from mmseg.registry import TRANSFORMS

from mmseg_ext.datasets.files import read_bytes
from mmseg_ext.datasets.labels import LabelRule, decode_label, require_size
from mmseg_ext.errors import LabelError


@TRANSFORMS.register_module()
class CheckedLoadAnnotations(LoadAnnotations):
    """Load `gt_seg_map` (H, W) uint8 and refuse what is no label map of the dataset.

    The number of classes comes with each sample from this package's datasets (`CheckedDataset`);
    for another dataset it is given here. An image that comes from no dataset and has no label
    map, as mmsegmentation's `inference_model` passes it, goes through as it is.

    Raises:
        ValueError: at the first sample, if `num_classes` is in neither place or
            `reduce_zero_label` differs from the dataset's.
        LabelError: for a dataset's image without a label map, and for a label map of several
            channels or more than 8 bits, of another size than its image, or with values outside
            the classes.
        UnreadableFileError: for one that is missing, truncated or does not decode.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        reduce_zero_label: bool | None = None,
        backend_args: dict | None = None,
        imdecode_backend: str = "pillow",
    ):
        super().__init__(reduce_zero_label, backend_args, imdecode_backend)
        self.num_classes = num_classes

    def _load_seg_map(self, results: dict) -> None:
        if "seg_map_path" not in results:
            if "sample_idx" not in results:
                return
            raise LabelError(f"{results['img_path']}: its annotation is missing (no seg_map_path)")
        path = results["seg_map_path"]
        data = read_bytes(path, self.backend_args)
        label = decode_label(data, path, self.imdecode_backend)
        if "ori_shape" in results:
            require_size(label, results["ori_shape"][:2], path, results["img_path"])
        results["gt_seg_map"] = self._rule(results).apply(label, path)
        results["seg_fields"].append("gt_seg_map")

    def _rule(self, results: dict) -> LabelRule:
        num_classes = self.num_classes or results.get("num_classes")
        if num_classes is None:
            raise ValueError(
                "CheckedLoadAnnotations: the dataset does not tell its number of classes; give "
                "dict(type='CheckedLoadAnnotations', num_classes=...)"
            )
        return _shared(LabelRule.from_data_info(results, num_classes, self.reduce_zero_label))

    def __repr__(self) -> str:
        return super().__repr__()[:-1] + f", num_classes={self.num_classes})"


@lru_cache(maxsize=64)
def _shared(rule: LabelRule) -> LabelRule:
    """The first rule equal to this one, with its tables made."""
    return rule
