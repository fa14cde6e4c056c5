"""The commands, one module for each tool, with the tool's name: its flags and its main."""
