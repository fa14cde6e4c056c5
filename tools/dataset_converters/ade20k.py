"""Unpack, place and verify ADEChallengeData2016; `--help` says where the archives come from."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("ade20k")
