"""Multiply-adds (called flops) and parameters: mmsegmentation's get_flops.py."""

from functools import partial

from mmseg_ext.commands._stock_tool import run_stock_tool

main = partial(run_stock_tool, "analysis_tools/get_flops.py")
