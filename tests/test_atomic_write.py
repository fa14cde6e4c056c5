"""Files are complete or unchanged, and on the disk before their name changes."""

import errno
import os
import secrets
import stat

import pytest

from mmseg_ext.atomic_write import atomic_write, remove_parts, write_text
from mmseg_ext.errors import NotWritten
from tests.messages import raises_message


def test_the_file_is_synced_before_the_rename_and_the_folder_after(tmp_path, monkeypatch):
    path, synced = tmp_path / "new" / "a.txt", []

    def fsync(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_text("text", path)
    assert synced == [(False, False), (True, True)]
    assert path.read_text() == "text" and list(path.parent.iterdir()) == [path]


def test_an_error_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "a.txt"
    write_text("before", path)
    with raises_message(NotWritten, "(full)", where=f"{path}: ") as end:  # noqa: SIM117
        with atomic_write(path) as part:
            part.write_text("half")
            raise OSError(errno.ENOSPC, "full")
    assert end.value.errno == errno.ENOSPC
    for error in (OSError("without a number"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as end, atomic_write(path):
            raise error
        assert end.value is error
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", [".", "/", "..", "folder", "link"])
def test_a_folder_is_refused_before_the_work(name, tmp_path, monkeypatch):
    """'.' and '/' have no name, and a link to a folder is not replaced by a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    with raises_message(NotWritten, "directory", where=f"{name}: "), atomic_write(name):
        raise AssertionError("the work was done")
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "link"}
    assert not any((tmp_path / "folder").iterdir())


def test_parts_of_killed_writers_are_removed(tmp_path):
    with atomic_write(tmp_path / "a.txt") as part:
        os.link(part, f"{part}.kept")  # what a killed writer leaves
    remove_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_writing_follows_no_links(tmp_path, monkeypatch):
    victim, folder = tmp_path / "victim", tmp_path / "foreign"
    victim.write_text("precious")
    folder.mkdir()
    path = folder / "report.html"
    path.symlink_to(victim)
    with atomic_write(path) as first, atomic_write(folder / "report.html") as second:
        assert first != second and first.read_bytes() == b""
        first.write_text("1"), second.write_text("2")
    assert not path.is_symlink() and path.read_text() == "1"
    assert victim.read_text() == "precious" and len(list(folder.iterdir())) == 1
    os.umask(umask := os.umask(0))
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    monkeypatch.setattr(secrets, "token_hex", lambda count: "0" * 2 * count)
    with atomic_write(path) as guessed:
        guessed.unlink()
        guessed.symlink_to(victim)
        with pytest.raises(NotWritten, match=f"^{path}: "):
            write_text("3", path)
        guessed.touch()
    assert victim.read_text() == "precious"


def test_excel_reads_umlauts_of_tables(tmp_path):
    """By a byte order mark, which other tables and files do not have."""
    cases = (("a.csv", "Zäune", True), ("b.csv", "a", False), ("c.tex", "ä", False))
    for name, text, mark in cases:
        write_text(text, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(b"\xef\xbb\xbf") == mark
        assert (tmp_path / name).read_text("utf-8-sig") == text


@pytest.mark.parametrize("name", ["a" * 251 + ".csv", "é" * 125 + ".csv"])
def test_a_name_can_be_as_long_as_the_disk_allows(name, tmp_path):
    write_text("1", tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_names_of_files_that_are_not_utf8_can_be_written(tmp_path):
    name = os.fsdecode(b"\xff\xe9.png")
    write_text(f"{name},1\n", tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_bytes().endswith(b"\xff\xe9.png,1\n")
