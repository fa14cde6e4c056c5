"""A published EAMLP classifier to the backbone EAMLP, or with --classifier to the whole network."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands._convert_file import main

    sys.exit(main("eamlp", classifier=True))
