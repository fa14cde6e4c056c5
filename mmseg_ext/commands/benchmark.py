"""Images a second on a test set of 200 images or more: mmsegmentation's benchmark.py."""

from functools import partial

from mmseg_ext.commands._stock_tool import run_stock_tool

main = partial(run_stock_tool, "analysis_tools/benchmark.py")
