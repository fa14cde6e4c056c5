"""Print the config and the run record that tools/train.py would start with; --help has flags."""

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands.print_config import main

    main()
