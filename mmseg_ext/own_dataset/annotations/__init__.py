"""Readers of annotations: folders of masks, COCO files and labelme files."""
