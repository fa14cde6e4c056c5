"""How far context blocks carry: `context_probe.py [--seeds N] [--plot PNG]`."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("context_probe")
