"""Looking at runs: the HTML page, curves, panels of predictions."""
