"""Readers of annotations: folders of masks, COCO files and labelme files.

Each reader lists annotations (`reader.Annotation`), reads one as an `IndexMap`, and says after all
are read what their values mean (`reader.Legend`).
"""
