"""Images that are what mmcv's `LoadImageFromFile` gives, or an error by the file's name.

The module needs mmcv alone, so that mmdetection and mmpretrain can use it, too.
"""

import numpy as np
from mmcv.transforms import TRANSFORMS, LoadImageFromFile

from mmseg_ext.datasets.files import as_stored, decode, read_bytes


@TRANSFORMS.register_module()
class CheckedLoadImage(LoadImageFromFile):
    """Load `img` (H, W, 3) as mmcv's `LoadImageFromFile`; an unreadable file stops the run.

    Arguments are those of `LoadImageFromFile`; `ignore_empty` has no effect. An image that has a
    label map is read as it is stored: mmcv would turn it by its EXIF orientation, and not the label
    map with it.

    Raises:
        UnreadableFileError: for a file that is missing, truncated or does not decode.
    """

    def transform(self, results: dict) -> dict:
        path = results["img_path"]
        flag = as_stored(self.color_type) if results.get("seg_map_path") else self.color_type
        image = decode(read_bytes(path, self.backend_args), path, flag, self.imdecode_backend)
        results["img"] = image.astype(np.float32) if self.to_float32 else image
        results["img_shape"] = results["ori_shape"] = image.shape[:2]
        return results
