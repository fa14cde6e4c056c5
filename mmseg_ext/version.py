"""The version; setup.py reads it as text."""

__version__ = "0.2.0"
