"""Make trainaug of PASCAL VOC 2012 from VOC and SBD; `--help` says where the archives come from."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("voc_aug")
