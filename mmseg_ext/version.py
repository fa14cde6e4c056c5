"""The version of the package; setup.py reads it as text."""

__version__ = "0.3.0"
