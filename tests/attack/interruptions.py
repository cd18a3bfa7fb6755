"""Attacks on commands that write: killed at any moment, on a full disk, two at a time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvscope.chat_logs.hashing import SALT_BYTES
from kvscope.core.errors import ExitCode
from tests.attack.attack import Attack, Case, Harm
from tests.attack.commands import DONE, Outcome, command, ended, in_its_own_process, process
from tests.attack.trace_files import sample_lines
from tests.chat_logs.models import write_model

STORE = "store.duckdb"
OLD = b"what was there before\n"
WRITERS: tuple[tuple[str, str], ...] = (
    ("ingest b.jsonl", ""),
    ("analyze b.jsonl --html out.html", "out.html"),
    ("fit a --export out.toml --policy tlru", "out.toml"),
    ("simulate a --capacity-blocks 50,90 --policy lru,s3fifo --html out.html", "out.html"),
    ("tune a --slo 150ms --capacity-blocks 100 --policy tlru --output out.toml", "out.toml"),
    ("export a --to bailian --output out.jsonl.zst", "out.jsonl.zst"),
    ("export a --to parquet --output out.parquet", "out.parquet"),
    ("synth to-c --requests 2000 --output out.jsonl.gz", "out.jsonl.gz"),
    ("deployment create --gpu h100 --model llama3-8b --output out.toml", "out.toml"),
    ("hash chats.jsonl --tokenizer model --salt-file salt --output out.jsonl", "out.jsonl"),
    ("ingest b.jsonl --into data --workers 1 --shards 2", ""),
    ("traces remove c", ""),
)
"""Every command that writes, on a store with the traces a and c, and the file that it writes."""
NO_STORE = ("synth", "deployment", "hash", "--into")
CHATS = 200


@dataclass(frozen=True, slots=True)
class Writer:
    """A command line that writes, the file it writes (or none), and how it goes undisturbed."""

    words: tuple[str, ...]
    output: str
    took_s: float
    content: bytes | None


class Interruption(Attack):
    """What cases share: a folder with a store of two traces, and a third trace's file."""

    limit_s = 240.0

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.sound = home / "sound"
        self.sound.mkdir()
        for name, sample, lines in (("a", "to-c", 420), ("b", "to-b", 120), ("c", "to-b", 30)):
            (self.sound / f"{name}.jsonl").write_bytes(b"\n".join(sample_lines(sample, lines)))
        (self.sound / "chats.jsonl").write_text("".join(map(_chat, range(CHATS))))
        (self.sound / "salt").write_text("0f" * SALT_BYTES)
        (self.sound / "salt").chmod(0o600)
        (self.sound / "model").mkdir()
        write_model(self.sound / "model")
        store = str(self.sound / STORE)
        for name in ("c", "a"):
            command("ingest", str(self.sound / f"{name}.jsonl"), "--db", store).check(DONE)
        words = ("simulate", "a", "--capacity-blocks", "40", "--policy", "lru", "--db", store)
        command(*words).check(DONE)
        self.before = _stored(self.sound)
        self.writer = cache(self._writer)

    def _writer(self, number: int) -> Writer:
        """Run a command undisturbed once, to know its time and its output."""
        line, output = WRITERS[number]
        words = (*line.split(), *(["--force"] if output else []))
        if not {*words} & {*NO_STORE}:
            words += ("--db", STORE)
        folder = self.home / f"writer-{number}"
        shutil.copytree(self.sound, folder)
        start_s = time.monotonic()
        in_its_own_process(*words, folder=folder).check(DONE)
        took_s = time.monotonic() - start_s
        content = (folder / output).read_bytes() if output else None
        return Writer(words, output, took_s, content)

    def begin(self, case: Case) -> tuple[Writer, Path]:
        """Choose a command, and lay out its folder; at times its output exists already."""
        writer = self.writer(case.random.randrange(len(WRITERS)))
        folder = case.folder / "work"
        shutil.copytree(self.sound, folder)
        if writer.output and case.random.random() < 0.5:
            (folder / writer.output).write_bytes(OLD)
        return writer, folder

    def check(self, folder: Path, *writers: Writer) -> None:
        """Raise Harm unless stored traces are as they were and outputs are old, none or whole."""
        lines = [" ".join(writer.words) for writer in writers]
        now = _stored(folder)
        for name, trace in self.before.items():
            removed = name not in now and any(f"remove {name}" in line for line in lines)
            if not removed and now.get(name) != trace:
                raise Harm(f"{lines}: trace {name} was {trace}, is {now.get(name)}")
        whole = {OLD, *(writer.content for writer in writers)}
        for writer, line in zip(writers, lines, strict=True):
            path = folder / writer.output
            if writer.output and path.exists() and path.read_bytes() not in whole:
                raise Harm(f"{line}: half a file, {path.stat().st_size} bytes")


def _chat(number: int) -> str:
    """Return a line of a log: one more question to what was asked before."""
    asked = [{"role": "user", "content": f"Question {each}"} for each in range(number % 9 + 1)]
    answer = {"choices": [{"message": {"role": "assistant", "content": f"Answer {number}"}}]}
    return json.dumps({"created": number, "messages": asked, "response": answer}) + "\n"


def _stored(folder: Path) -> dict[str, Any]:
    """Return the store's traces by name, as `traces --json` lists them."""
    outcome = command("traces", "--json", "--db", str(folder / STORE)).check(DONE)
    return {trace["name"]: trace for trace in outcome.document()["traces"]}


class Kills(Interruption):
    """After SIGKILL the store has what it had, no file is half written, the next try works."""

    name = "kills"
    target = "SIGKILL at a random moment of every command that writes"
    share = 0.3
    short = 2

    def attempt(self, case: Case) -> int:
        """Kill one command."""
        writer, folder = self.begin(case)
        child = process(*writer.words, folder=folder)
        moment_s = writer.took_s * case.random.uniform(0.2, 1.1)
        try:
            child.wait(moment_s)
        except subprocess.TimeoutExpired:
            os.kill(child.pid, signal.SIGKILL)
        ended(child)
        self.check(folder, writer)
        with contextlib.chdir(folder):
            again = command(*writer.words)
        if "no stored trace" not in again.err:  # removed before the kill
            again.check(DONE)
        self.check(folder, writer)
        return 1


class FullDisk(Interruption):
    """A full disk is one line; the store has what it had, no file is half written."""

    name = "full-disk"
    target = "commands that write, on a disk of a few MiB (or below a limit of file sizes)"
    share = 0.1
    short = 2

    def attempt(self, case: Case) -> int:
        """Run one command with little room, then again with enough."""
        writer, folder = self.begin(case)
        room = case.random.choice((0, 4096, 65_536, 2**19, 2**20, 3 * 2**20))
        with _little_room(folder, room) as place:
            with contextlib.chdir(place):
                command(*writer.words).check(DONE, ExitCode.FAILED)
            left = [path.name for path in place.rglob(".*") if path.is_file()]
            if left:
                raise Harm(f"{' '.join(writer.words)}: {left} left behind")
            after = case.folder / "after"
            shutil.copytree(place, after)
        self.check(after, writer)
        return 1


class TwoProcesses(Interruption):
    """Two commands on one store: both succeed, or one says which process has the store."""

    name = "two-processes"
    target = "two commands that write one store, at the same time"
    share = 0.1
    short = 1

    def attempt(self, case: Case) -> int:
        """Start two commands, the second at a random moment of the first."""
        first, folder = self.begin(case)
        second = self.writer(case.random.randrange(len(WRITERS)))
        children = [process(*first.words, folder=folder)]
        time.sleep(case.random.uniform(0, first.took_s))
        children.append(process(*second.words, folder=folder))
        for outcome in [*map(ended, children)]:
            _check_busy(outcome)
        self.check(folder, first, second)
        return 1


def _check_busy(outcome: Outcome) -> None:
    if outcome.code and "no stored trace" in outcome.err:  # which the other one removed
        return
    outcome.check(DONE, ExitCode.FAILED)
    if outcome.code and not re.search("is (using the store|making this dataset)", outcome.err):
        raise Harm(f"kvscope {' '.join(outcome.words)}: {outcome.err}")


@contextmanager
def _little_room(folder: Path, room: int) -> Iterator[Path]:
    """Yield a copy of `folder` on a disk with `room` bytes left; else bound the size of files.

    Only root can mount a disk.
    """
    used = sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*"))
    disk = folder.parent / "disk"
    disk.mkdir()
    size = f"size={used + room + 4096}"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)]
    mounted = (
        os.geteuid() == 0 and not subprocess.run(mount, check=False, capture_output=True).returncode
    )
    try:
        shutil.copytree(folder, disk, dirs_exist_ok=True)
        with _bounded_files(None if mounted else room + 4096):
            yield disk
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)


@contextmanager
def _bounded_files(most: int | None) -> Iterator[None]:
    """Let this process write no file beyond `most` bytes in the block; None bounds nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft if most is None else most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
