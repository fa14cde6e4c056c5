"""A legacy checkpoint, which only unpickling can read, to tensors and plain containers.

Unpickling runs code from the file: only for files whose source you trust; see --help.
"""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("unpickle2safe")
