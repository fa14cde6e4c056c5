"""Convert a dataset to the layout that the configs read: `prepare camvid SRC DST`."""

from collections.abc import Sequence

from mmseg_ext.commands import exit_on_error
from mmseg_ext.commands._flags import prepare as parser
from mmseg_ext.datasets.camvid import prepare_camvid

CONVERTERS = {"camvid": prepare_camvid}


@exit_on_error
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    counts = CONVERTERS[args.dataset](args.source, args.destination)
    found = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    print(f"{args.destination}: {found}")
    return 0
