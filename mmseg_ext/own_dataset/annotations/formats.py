"""Formats that are not read, or by another flag: their marks, and the next step."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mmseg_ext.errors import join_names, pointer_problem
from mmseg_ext.images.files import files_below

_TEXTS = (".csv", ".json", ".geojson", ".ndjson", ".xml", ".txt")  # files in which texts are marks
_DRAW = "draw its outlines as masks, as with cv2.fillPoly, and save PNG"
_BOXES = "export polygons or masks, because boxes do not tell which pixels are objects"
_COCO = "there export COCO"
_DATUM = "datum convert -i DIR -f coco_instances -o NEW -if"
# Without such an attribute its export has no category and no annotation.
_VIA = "there give each region an attribute of type dropdown, such as class, then use Annotation > "
_VIA += "Export Annotations (COCO format)"
_SLICES = "save each slice as TIFF, as docs/own_dataset.md shows"
_RUNS = "save masks as PNG, drawn with mask.T.flat[start - 1 : start - 1 + length] = 1"
_FRAMES = "save frames, as with ffmpeg -i FILE -r 1 DIR/%05d.png"
# Marks are endings of the name, or expressions that all fit in the file, such as keys of JSON and
# the root of XML. The first row counts that has one of its endings, or all of its expressions.
_FORMATS = (
    (".mp4 .avi .mov .mkv .webm", "a video", _FRAMES),
    (".nii .nii.gz", "NIfTI", _SLICES),
    (".dcm .dicom", "DICOM", _SLICES),
    (".nrrd .mha .mhd", "a volume", _SLICES),
    (".mat", "of MATLAB", "save an array of scipy.io.loadmat(FILE) as PNG"),
    (".npy .npz", "of NumPy", "save the array of numpy.load(FILE) as PNG"),
    (".h5 .hdf5", "HDF5", "save its arrays as PNG, or photos as TIFF"),
    (".svs .ndpi .czi .nd2 .lif", "of a microscope", "save regions as TIFF, as with QuPath"),
    (".shp .gpkg .kml", "a map of shapes", "save masks, as with gdal_rasterize"),
    ("_roiset.zip .roi", "of ImageJ", "there use Edit > Selection > Create Mask, and save PNG"),
    (".zip .tar .gz .7z .rar", "an archive", "unpack it"),
    ("^<annotations>", "of CVAT", "there export COCO 1.0 or Segmentation mask 1.1"),
    ('"tracks" "shapes"', "of CVAT", "there export COCO 1.0 or Segmentation mask 1.1"),
    (r"<Annotations\b <Regions\b", "of Aperio ImageScope", _DRAW),
    (r"<ASAP_Annotations\b", "of ASAP", _DRAW),
    (r"<annotation\b <polygon>", "of LabelMe 3", f"{_DATUM} label_me"),
    (r"<annotation\b <bndbox>", "of VOC's boxes", _BOXES),
    ('"file_attributes"', "of VIA", _VIA),
    ('"objects" "size" "tags"', "of Supervisely", "there run the app Export to COCO"),
    ('"lead_time"', "of Label Studio", _COCO),
    ('"annotations" "result" "data"', "of Label Studio", _COCO),
    ('"items" "categories"', "of Datumaro", f"{_DATUM} datumaro"),
    ('"annotations" "item" "slots"', "of V7 Darwin", _COCO),
    ('"label_classes" "images"', "of Hasty", _COCO),
    ('"samples" "task_type"', "of Segments.ai", "export_dataset(..., 'semantic') saves masks"),
    ('"imgHeight" "objects"', "of Cityscapes", "use --masks 'gtFine/*_labelIds.png'"),
    ('"asset" "regions"', "of VoTT", _DRAW),
    ('"visitedAssetIds"', "of VoTT", _DRAW),
    ('"data_row"', "of Labelbox", _DRAW),
    ('"annotations" "coordinates" "image"', "of Create ML's boxes", _BOXES),
    ('"shapes" "imagePath"', "of labelme", "use --labelme DIR"),
    ("^ImageId.*,EncodedPixels", "of Kaggle's run lengths", _RUNS),
    ('"features"', "GeoJSON", "use --geojson DIR"),
    ('"images" "categories"', "of COCO", "use --coco FILE"),
    (r"^\d+([^\S\n]+[\d.e-]+){4}[^\S\n]*$", "of YOLO's boxes", _BOXES),
    (r"^\d+([^\S\n]+[\d.e-]+){6,}[^\S\n]*$", "of YOLO", "use --yolo DIR"),
)


def format_of(path: Path, flag: str = "") -> str:
    """Return the format of a file that cannot be read, and the next step.

    Nothing, if the format is unknown or `flag` reads it.
    """
    name, text = path.name.lower(), ""
    if name.endswith(_TEXTS):
        text = path.read_text(errors="replace")
        if pointer := pointer_problem(text[:64].encode()):
            return pointer
    for marks, form, step in _FORMATS:
        if marks[0] in "._":
            fits = name.endswith(tuple(marks.split()))
        else:
            fits = bool(text) and all(re.search(mark, text, re.M) for mark in marks.split())
        if fits:
            return "" if flag and flag in step else f"is {form}; {step}"
    return ""


def require_no_other(folder: Path, suffixes: Sequence[str] = ()) -> None:
    """Raise ValueError if a folder without the expected files has files of another format.

    With `suffixes`, which the expected files have, an unknown format is an error, too.
    """
    paths = files_below(folder)
    endings = Counter(path.suffix.lower() for path in paths)
    for path in paths:
        if found := format_of(path):
            count = endings[path.suffix.lower()]
            others = f" ({count} {path.suffix} files in all)" if count > 1 else ""
            raise ValueError(f"{path}: {found}{others}")
    if endings and suffixes:
        kinds = [f"{count} {ending}".strip() for ending, count in endings.most_common()]
        todo = f"give {', '.join(suffixes)}, or convert the files as docs/own_dataset.md shows"
        raise ValueError(f"{folder}: has only other files ({join_names(kinds, 3)}); {todo}")
