"""Label maps that are what mmsegmentation's `LoadAnnotations` gives, or an error by their name."""

from mmseg.datasets.transforms import LoadAnnotations
from mmseg.registry import TRANSFORMS

from mmseg_ext.datasets.labels import read_label
from mmseg_ext.errors import LabelError


@TRANSFORMS.register_module()
class CheckedLoadAnnotations(LoadAnnotations):
    """Load `gt_seg_map` (H, W) uint8 and refuse what is no label map of the dataset.

    The number of classes comes with each sample from this package's datasets (`CheckedDataset`).
    With another dataset give `num_classes`; without it any value of 8 bits passes. An image that
    comes from no dataset and has no label map, as mmsegmentation's `inference_model` passes it,
    goes through as it is.

    Raises:
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
        info = dict(results)
        if self.num_classes is not None:
            info["num_classes"] = self.num_classes
        if self.reduce_zero_label is not None:
            info["reduce_zero_label"] = self.reduce_zero_label
        results["gt_seg_map"] = read_label(info, self.imdecode_backend, self.backend_args)
        results["seg_fields"].append("gt_seg_map")

    def __repr__(self) -> str:
        return super().__repr__()[:-1] + f", num_classes={self.num_classes})"
