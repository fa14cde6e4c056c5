"""Multiply-adds (called flops) and parameters: mmsegmentation's get_flops.py; see `--help`."""

from mmseg_ext.analysis.stock_tool import run_stock_tool

if __name__ == "__main__":
    run_stock_tool("analysis_tools/get_flops.py")
