"""The records of a run: the JSON files in its work directory.

Every start of a training writes `run.json` with its settings and software to its own log folder.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmseg_ext.atomic_write import write_text
from mmseg_ext.errors import format_error

RECORD = "run.json"


def write_record(record: Mapping[str, Any], log_dir: str | Path) -> None:
    write_text(json.dumps(record, indent=2, default=str) + "\n", Path(log_dir, RECORD))


def read_records(work_dir: str | Path) -> dict[Path, dict[str, Any]]:
    """Return the record of each start of a run by its log folder, the oldest first.

    Raises:
        ValueError: for a damaged record.
    """
    paths = sorted(Path(work_dir).glob(f"[0-9]*/{RECORD}"))  # log folders are called 20260131_...
    return {path.parent: read_object(path) for path in paths}


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        ValueError: for another file.
    """
    try:
        return dict(json.loads(path.read_text(encoding="utf-8", errors="replace")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: is damaged ({format_error(error)}); delete it") from error
