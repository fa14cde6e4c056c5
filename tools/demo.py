"""Train EANet on the embedded dataset, test it and draw its predictions: what `make demo` runs."""

from mmseg_ext_cli import start

if __name__ == "__main__":
    start("demo")
