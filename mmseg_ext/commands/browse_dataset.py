"""Show a config's training data: mmsegmentation's browse_dataset.py."""

from functools import partial

from mmseg_ext.commands._stock_tool import run_stock_tool

main = partial(run_stock_tool, "analysis_tools/browse_dataset.py")
