"""Videos as frames, one after the other, with OpenCV."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.errors import UnreadableFileError

VIDEO_SUFFIXES = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")


def open_video(path: Path) -> tuple[Any, int, float]:
    """Return OpenCV's capture, the number of frames as the file declares it, and their rate."""
    capture = cv2.VideoCapture(str(path))
    if not capture.isOpened():
        raise UnreadableFileError(f"{path}: OpenCV cannot open this video; convert it with ffmpeg")
    count = max(0, round(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
    return capture, count, capture.get(cv2.CAP_PROP_FPS) or 25.0


def frames(capture: Any, count: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number, from 1, and the pixels, RGB (H, W, 3), of each frame that decodes."""
    for number in itertools.count(1):
        decodes, frame = capture.read()
        if decodes:
            yield number, cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
        elif number >= count:  # the count of some formats is an estimate
            return


@contextlib.contextmanager
def video_writer(path: Path, rate: float) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that adds a frame, RGB (H, W, 3), to a new MP4 file."""
    writer, code = cv2.VideoWriter(), cv2.VideoWriter.fourcc(*"mp4v")
    with atomic_write(path) as part:

        def write(frame: np.ndarray) -> None:
            size = (frame.shape[1], frame.shape[0])
            if not writer.isOpened() and not writer.open(str(part), code, rate, size):
                raise ValueError(f"{path}: this OpenCV writes no MP4; pip install opencv-python")
            writer.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))

        try:
            yield write
        finally:
            writer.release()
