"""Checks of an installation, and the outputs of the published code that they compare with."""
