"""What works on this machine: checks of an installation, each one line with a figure."""
