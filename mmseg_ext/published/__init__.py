"""Published weights: one module for each family maps its names to ours."""
