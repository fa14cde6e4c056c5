"""Draw training samples with their labels: mmsegmentation's browse_dataset.py; see `--help`."""

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands._stock_tool import run_stock_tool

    run_stock_tool("analysis_tools/browse_dataset.py")
