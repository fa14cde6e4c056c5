"""A published EAMLP classifier to the backbone EAMLP, or with --classifier to the whole network."""

import sys

from mmseg_ext.checkpoint.convert_file import main

if __name__ == "__main__":
    sys.exit(main("eamlp", classifier=True))
