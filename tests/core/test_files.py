"""Files appear whole, caches are private, work goes on in the background."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, get_ident
from typing import Any, BinaryIO

import pytest

from kvscope.app.gates import read_document
from kvscope.core import files, toml_files
from kvscope.core.background import consume_in_background, in_background
from kvscope.core.errors import InputError
from kvscope.core.files import (
    content_of,
    files_of,
    missing_from,
    one_path,
    private_cache,
    sink,
    whole_file,
    write_text,
)
from kvscope.core.toml_files import document_in
from kvscope.deployment import pool
from kvscope.deployment.models import read_config
from kvscope.deployment.pool import observed_pool


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
    """By its shortest path; two links to folders around them are 2^40 paths."""
    (tmp_path / "b.jsonl").write_text("")
    (tmp_path / "in" / "there").mkdir(parents=True)
    (tmp_path / "in" / "a.jsonl").write_text("")
    (tmp_path / "again").symlink_to(".")
    (tmp_path / "in" / "there" / "up").symlink_to("../..")
    inner = [str(tmp_path / "in" / "a.jsonl")]
    assert files_of(f"{tmp_path}/**/*") == [str(tmp_path / "b.jsonl"), *inner]
    assert files_of(f"{tmp_path}/**") == files_of(f"{tmp_path}/**/*")
    assert files_of(f"{tmp_path}/**/there/*.jsonl") == []
    assert files_of(f"{tmp_path}/no/**/*") == []
    (tmp_path / "c.jsonl").hardlink_to(tmp_path / "b.jsonl")
    (tmp_path / "d.jsonl").symlink_to("c.jsonl")
    assert files_of(str(tmp_path)) == [str(tmp_path / "b.jsonl")]
    both = one_path([str(tmp_path / "c.jsonl"), str(tmp_path / "b.jsonl")])
    assert files_of(both) == [str(tmp_path / "c.jsonl")]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    """Whatever else the pattern would match; folders likewise."""
    for name in ("day[1]", "day1"):
        (tmp_path / f"{name}.jsonl").write_text("")
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text("")
    for path, file in (("day[1].jsonl", "day[1].jsonl"), ("day[1]", "day[1]/a.jsonl")):
        assert files_of(str(tmp_path / path)) == [str(tmp_path / file)]
    assert files_of(str(tmp_path / "day[12].jsonl")) == [str(tmp_path / "day1.jsonl")]


@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json"])
def test_json_is_bounded_in_depth(tmp_path: Path, name: str) -> None:
    """Of a model and of what lies beside its config.json."""
    for each in ("config.json", name):
        (tmp_path / each).write_text("{}" if each != name else "[" * 200_000)
    with pytest.raises(InputError, match=f"{name}: not a JSON document"):
        read_config(tmp_path / "config.json")


def test_an_engine_log_has_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device has none, and never ends."""
    monkeypatch.setattr(pool, "_MOST_PARTS", 3)
    with pytest.raises(InputError, match="no lines of text"):
        observed_pool(Path("/dev/zero"))


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a named pipe that no other process opens, and wait for none for long."""
    monkeypatch.setattr(files, "PIPE_WAIT_S", 0.1)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize(
    "read",
    [
        content_of,
        lambda path: document_in(path, "remedy"),
        observed_pool,
        lambda path: read_document(str(path)),
        read_config,
    ],
    ids=["content", "toml", "engine log", "baseline", "config"],
)
def test_a_pipe_without_its_other_end_is_given_up(pipe: Path, read: Callable[[Path], Any]) -> None:
    """Whatever kvscope reads as a file, and whatever it writes."""
    with pytest.raises(InputError, match=r"no process has opened this pipe to read within 0\.1 s"):
        write_text(pipe, "never read")
    with pytest.raises(InputError, match=r"no process has opened this pipe to write within 0\.1 s"):
        read(pipe)


def test_a_pipe_is_read_and_written_once_both_ends_are_open(pipe: Path) -> None:
    """As a stream, whichever end comes first."""
    reader = in_background(content_of, pipe)
    write_text(pipe, "x" * 100_000)
    assert reader.result(timeout=10) == b"x" * 100_000


def test_what_is_read_whole_has_a_largest_size(tmp_path: Path) -> None:
    """Up to it, to the byte."""
    path = tmp_path / "a"
    path.write_bytes(b"123")
    assert content_of(path, 3) == b"123"
    with pytest.raises(InputError, match="larger than 2 B"):
        content_of(path, 2)


def test_toml_is_bounded_in_size_and_depth(tmp_path: Path) -> None:
    """A key of 100,000 names takes the parser all memory; numbers in one line are no names."""
    path = tmp_path / "a.toml"
    numbers = ", ".join(["1.5"] * 1_000)
    path.write_text(f"schema = 1\nx = [{numbers}]\n{'.'.join('a' * 100)} = 1\n")
    assert len(document_in(path, "remedy")["x"]) == 1_000
    for text, what in (
        (".".join("a" * 100_000) + " = 1", "line 2 has a key of more than 100 names"),
        (".".join("1" * 100_000) + " = 1", "line 2 has a key of more than 100 names"),
        ("[" + '."x"' * 200 + "]", "line 2 has a key of more than 100 names"),
        ("x = " + "[" * 100_000, "not a TOML file: maximum recursion depth"),
        (f"x = '{'a' * toml_files.MAX_BYTES}'", "larger than 4 MiB"),
    ):
        path.write_text(f"schema = 1\n{text}\n")
        with pytest.raises(InputError, match=what):
            document_in(path, "remedy")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache folder to be; the temporary folder is `temporary`, next to it."""
    monkeypatch.setenv("KVSCOPE_CACHE_DIR", str(tmp_path / "home"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "home"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _in_temporary(home: Path) -> Path:
    return home.parent / "temporary" / f"kvscope-{os.geteuid()}-kernels"


def test_the_folder_is_private_and_stays_the_same(home: Path) -> None:
    """Below the cache folder."""
    assert private_cache("kernels") == private_cache("kernels") == home / "kernels"
    assert _mode(home / "kernels") == 0o700


def test_a_folder_that_others_can_write_to_is_not_used(home: Path) -> None:
    """Nor is one that is a symbolic link, or a file."""
    (home / "kernels").mkdir(parents=True)
    (home / "kernels").chmod(0o770)
    (home / "elsewhere").mkdir(mode=0o700)
    (home / "links").symlink_to(home / "elsewhere")
    (home / "text").write_text("")
    assert private_cache("kernels") == _in_temporary(home)
    assert _mode(_in_temporary(home)) == 0o700
    for name in ("links", "text"):
        assert private_cache(name).parent == home.parent / "temporary"


def test_a_temporary_folder_that_somebody_else_has_made_is_not_used(home: Path) -> None:
    """A folder of this process alone is, which ends with it."""
    home.write_text("a file where the folder should be")
    trap = _in_temporary(home)
    trap.mkdir()
    trap.chmod(0o777)
    script = "from kvscope.core.files import private_cache; print(private_cache('kernels'))"
    process = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"TMPDIR": str(trap.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    folder = Path(process.stdout.strip())
    assert folder.parent == trap.parent
    assert folder != trap
    assert list(trap.parent.iterdir()) == [trap]


def test_a_folder_of_another_user_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its mode."""
    private_cache("kernels")
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert home not in private_cache("kernels").parents


def test_the_call_runs_while_the_caller_goes_on() -> None:
    """The call can wait for what the caller does after it has begun it."""
    done = Event()
    future = in_background(lambda: (done.wait(10), get_ident()))
    done.set()
    seen, thread = future.result()
    assert seen
    assert thread != get_ident()


def test_an_error_is_raised_where_it_is_waited_for() -> None:
    """Each time."""
    future = in_background(int, "no number")
    for _ in range(2):
        with pytest.raises(ValueError, match="no number"):
            future.result()


def test_items_are_used_in_order_and_all_of_them() -> None:
    """Whether there are many, one or none."""
    for count in (0, 1, 2, 50):
        used: list[int] = []
        consume_in_background(used.append, range(count))
        assert used == list(range(count))


def test_no_more_than_two_items_are_there_at_once() -> None:
    """One is used while the next is made: the one after it is made when the first is done."""
    made: list[int] = []
    used: list[int] = []

    def items() -> Iterator[int]:
        for item in range(20):
            assert len(used) >= item - 1
            made.append(item)
            yield item

    consume_in_background(used.append, items())
    assert used == made == list(range(20))


def test_the_error_of_an_item_comes_before_that_of_making_the_next() -> None:
    """As if one had been done after the other."""
    making_failed = Event()

    def items() -> Iterator[int]:
        yield 1
        making_failed.set()
        raise OSError("making the second failed")

    def use(item: int) -> None:
        making_failed.wait(10)
        raise ValueError(f"item {item} is no good")

    with pytest.raises(ValueError, match="item 1 is no good"):
        consume_in_background(use, items())


def test_nothing_is_used_after_an_error() -> None:
    """And no item is made beyond the one that was on its way."""
    made: list[int] = []

    def items() -> Iterator[int]:
        for item in range(10):
            made.append(item)
            yield item

    def use(item: int) -> None:
        if item == 3:
            raise ValueError(item)

    with pytest.raises(ValueError, match="3"):
        consume_in_background(use, items())
    assert made == [0, 1, 2, 3, 4]


def test_an_interrupt_in_making_waits_for_the_use_and_comes_out() -> None:
    """What is half used would be changed under the caller's hands."""
    interrupted = Event()
    used: list[int] = []

    def items() -> Iterator[int]:
        yield 1
        interrupted.set()
        raise KeyboardInterrupt

    def use(item: int) -> None:
        interrupted.wait(10)
        used.append(item)

    with pytest.raises(KeyboardInterrupt):
        consume_in_background(use, items())
    assert used == [1]
