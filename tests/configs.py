"""Where the configs are, and what leaves the text of a run's as it comes."""

from pathlib import Path

CONFIGS = Path(__file__).parents[1] / "configs"


def unformatted(text: str, **_) -> tuple[str, bool]:
    """For yapf's `FormatCode`: a run formats its config seven times, which outlasts its steps."""
    return text, True
