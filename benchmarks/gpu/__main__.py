"""`python -m benchmarks.gpu`."""

import sys

from benchmarks.gpu.runner import main

if __name__ == "__main__":
    sys.exit(main())
