"""`python -m benchmarks.gpu`. Started processes cannot import this file, so the rest is elsewhere."""

import sys

from benchmarks.gpu.runner import main

if __name__ == "__main__":
    sys.exit(main())
