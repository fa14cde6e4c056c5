"""Train EANet on the embedded dataset, test it and draw its predictions (`make demo`)."""

from mmseg_ext_cli import start

if __name__ == "__main__":
    start("demo")
