"""A legacy checkpoint, which only unpickling can read, to tensors and plain containers.

Unpickling runs code from the file: only for files whose source you trust; see --help.
"""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands.unpickle2safe import main

    sys.exit(main())
