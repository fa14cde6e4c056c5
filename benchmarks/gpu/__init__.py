"""Check and measure this project on a GPU: `python -m benchmarks.gpu --out DIR`."""
