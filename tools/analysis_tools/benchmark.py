"""Images a second on a test set of 200 images or more: mmsegmentation's benchmark.py."""

from mmseg_ext.analysis.stock_tool import run_stock_tool

if __name__ == "__main__":
    run_stock_tool("analysis_tools/benchmark.py")
