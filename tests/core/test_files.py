"""Files that appear when they are whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from kvscope.core.files import files_of, missing_from, sink, whole_file, write_text


class Broken(Exception):
    """What goes wrong in the middle."""


def test_a_file_takes_its_name_when_it_is_whole(tmp_path: Path) -> None:
    """Until then the old content stands; afterwards nothing else lies there."""
    path = tmp_path / "report.html"
    write_text(path, "before")
    with whole_file(path) as file:
        file.write("after, größer".encode())
        assert path.read_text(encoding="utf-8") == "before"
    assert path.read_text(encoding="utf-8") == "after, größer"
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_what_breaks_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    """Neither half a file nor a temporary one; an earlier file stays."""
    path = tmp_path / "trace.jsonl.gz"
    for earlier in ([], ["trace.jsonl.gz"]):
        with pytest.raises(Broken), sink(str(path)) as stream:
            _break(stream)
        assert [one.name for one in tmp_path.iterdir()] == earlier
        path.write_bytes(b"before")
    assert path.read_bytes() == b"before"


def _break(stream: BinaryIO) -> None:
    stream.write(b"half")
    raise Broken


def test_a_link_stays_one_and_modes_follow_the_mask(tmp_path: Path) -> None:
    """As if the file had been opened for writing."""
    real, link = tmp_path / "real.toml", tmp_path / "link.toml"
    real.write_text("before")
    link.symlink_to(real)
    before = os.umask(0o027)
    try:
        write_text(link, "after")
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert real.read_text() == "after"
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_pipe_is_written_to_as_it_is() -> None:
    """What is no file cannot be replaced."""
    read, write = os.pipe()
    write_text(Path(f"/proc/self/fd/{write}"), "hello")
    os.close(write)
    assert os.read(read, 100) == b"hello"
    os.close(read)


def test_a_name_too_long_for_a_file_is_none() -> None:
    """It may be a stored trace's."""
    assert missing_from("x" * 5000) == ["x" * 5000]


def test_links_count_a_file_once(tmp_path: Path) -> None:
    """By its shortest path; a link to its own folder leads there again and again."""
    (tmp_path / "b.jsonl").write_text("")
    (tmp_path / "again").symlink_to(".")
    assert files_of(f"{tmp_path}/**/*") == [str(tmp_path / "b.jsonl")]
