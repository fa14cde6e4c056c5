"""Weights of a training checkpoint as a file to give to others: `publish_model.py IN OUT`."""

import sys

from mmseg_ext.checkpoint.publish import main

if __name__ == "__main__":
    sys.exit(main())
