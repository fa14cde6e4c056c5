"""`python -m mmseg_ext [COMMAND]` is `mmseg-ext [COMMAND]`."""

from mmseg_ext.commands import main

if __name__ == "__main__":
    main()
