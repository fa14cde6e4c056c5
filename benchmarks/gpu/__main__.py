"""`python -m benchmarks.gpu`; started processes cannot import this file."""

import sys

from benchmarks.gpu.runner import main

if __name__ == "__main__":
    sys.exit(main())
