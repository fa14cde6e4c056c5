"""Images a second on a test set of 200 images or more: mmsegmentation's benchmark.py."""

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands._stock_tool import run_stock_tool

    run_stock_tool("analysis_tools/benchmark.py")
