"""Convert published weights to mmsegmentation's names: FAMILY SRC DST."""

from collections.abc import Sequence
from pathlib import Path

from mmseg_ext.checkpoint.files import check_suffix, read_state_dict, write_weights
from mmseg_ext.commands import exit_on_error
from mmseg_ext.commands._flags import convert as parser
from mmseg_ext.published import FAMILIES, convert_official


@exit_on_error
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    check_suffix(args.dst)
    if args.dst.exists() and not args.overwrite:
        raise FileExistsError(f"{args.dst} exists; --overwrite replaces it")
    if not Path(args.src).is_file():
        source = FAMILIES[args.family].source
        raise FileNotFoundError(f"{args.src}: no such checkpoint file; {args.family}: {source}")
    converted = convert_official(args.family, read_state_dict(args.src), args.classifier)
    write_weights(converted, args.dst)
    values = sum(value.numel() for value in converted.values())
    print(f"{args.dst}: {len(converted)} entries, {values / 1e6:.2f} M values")
    return 0
