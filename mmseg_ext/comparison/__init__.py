"""Comparisons: configs, seeds and data sets as runs, and one table with intervals of all."""
