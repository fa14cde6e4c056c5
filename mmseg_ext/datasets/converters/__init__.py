"""From the published archives to the layouts that the configs read. Nothing is downloaded."""
