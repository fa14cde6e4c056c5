"""Formats that are not read: their marks, and the next step."""

from pathlib import Path

from mmseg_ext.errors import pointer_problem
from mmseg_ext.images.files import files_below

_CVAT = "of CVAT; there export COCO 1.0 or Segmentation mask 1.1"
_SLICES = "save each slice as TIFF, as docs/own_dataset.md shows"
_VIA = "of VIA; there use Annotation > Export Annotations (COCO format)"
_VIDEO = "a video; save frames, as with ffmpeg -i FILE -r 1 DIR/%05d.png"
_OF_ENDING = {  # of a file's name
    **dict.fromkeys((".mp4", ".avi", ".mov", ".mkv", ".webm"), _VIDEO),
    **dict.fromkeys((".nii", ".nii.gz"), f"NIfTI; {_SLICES}"),
    **dict.fromkeys((".dcm", ".dicom"), f"DICOM; {_SLICES}"),
    ".mat": "of MATLAB; save an array of scipy.io.loadmat(FILE) as PNG",
    ".npy": "of NumPy; save numpy.load(FILE) as PNG",
    ".txt": "text, perhaps of YOLO; for polygons use --yolo DIR",
}
_OF_PARTS = (  # texts that all are in a file of JSON or XML
    (["<annotations>"], _CVAT),
    (['"tracks"', '"shapes"'], _CVAT),
    (['"file_attributes"'], _VIA),
    (['"objects"', '"size"', '"tags"'], "of Supervisely; there run the app Export to COCO"),
    (['"lead_time"'], "of Label Studio; there export COCO"),
    (
        ['"items"', '"categories"'],
        "of Datumaro; datum convert -if datumaro -i DIR -f coco_instances -o NEW",
    ),
    (['"shapes"', '"imagePath"'], "of labelme; use --labelme DIR"),
    (['"features"'], "GeoJSON; use --geojson DIR"),
    (['"images"', '"categories"'], "of COCO; use --coco FILE"),
)


def format_of(path: Path, flag: str = "") -> str:
    """Return the format of a file that cannot be read, and the next step.

    Nothing, if the format is unknown or the one of `flag`.
    """
    found = ""
    if path.suffix.lower() in (".json", ".geojson", ".txt", ".xml"):
        text = path.read_text(errors="replace")
        if pointer := pointer_problem(text[:64].encode()):
            return pointer
    for ending, format_and_step in _OF_ENDING.items():
        if path.name.lower().endswith(ending):
            found = format_and_step
    if path.suffix.lower() in (".json", ".geojson", ".xml"):
        for parts, format_and_step in reversed(_OF_PARTS):
            if all(part in text for part in parts):
                found = format_and_step
    if not found or (flag and flag in found):
        return ""
    return f"is {found}"


def require_no_other(folder: Path) -> None:
    """Raise ValueError if a folder without the expected files has files of another format."""
    for path in files_below(folder):
        if found := format_of(path):
            raise ValueError(f"{path}: {found}")
