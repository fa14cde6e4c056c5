"""Parameters, multiply-adds, time and memory of configs, as the table of docs/model_zoo.md."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("model_cost")
