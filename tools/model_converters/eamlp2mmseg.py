"""A published EAMLP classifier to the backbone EAMLP, or with --classifier to the whole network."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("eamlp2mmseg")
