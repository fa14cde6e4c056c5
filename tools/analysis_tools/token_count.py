"""How normalised attention maps fare at other image sizes: `token_count.py [--json FILE]`."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.analysis.token_count import main

    sys.exit(main())
