"""Examples beyond segmentation. They stand beside the package and are not installed with it."""
