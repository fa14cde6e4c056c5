"""A trained segmentor made ready for use: fused, or as one file without mmsegmentation."""
