"""The version of the package; setup.py reads it as text."""

__version__ = "1.0.0"
