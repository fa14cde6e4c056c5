"""`new_project` and `check_dataset`: a project for your own images (docs/own_dataset.md)."""
