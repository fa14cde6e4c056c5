"""Examples beyond segmentation. They are not part of the installed package."""
