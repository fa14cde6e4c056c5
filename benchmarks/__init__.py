"""The tables of the docs: one script for each page. Not installed."""
