"""Published weights: one module for each family that maps its names to ours."""
