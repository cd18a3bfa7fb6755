"""Attack on a recording while it is followed: truncated, regrown, replaced, removed."""

from __future__ import annotations

import json
import os
from contextlib import closing, suppress
from pathlib import Path
from random import Random

from kvscope.app.watch import Watch, WatchOptions, measure, watch_request
from kvscope.core.errors import KvscopeError
from kvscope.ingest.follow import Follower
from tests.attack.attack import Attack, Case, Harm
from tests.attack.mutations import mutated_bytes

STEPS = 60


class Watched(Attack):
    """Each whole line comes once and in its order, whatever becomes of the file between looks."""

    name = "watch"
    target = "a recording that is truncated, regrown, replaced or removed while it is followed"
    share = 0.03
    short = 6

    def attempt(self, case: Case) -> int:
        """Do something to the recording, look, and compare with what was written since."""
        random, folder = case.random, case.folder / "recordings"
        folder.mkdir()
        path = folder / "recording-a-00001.jsonl"
        watch = Watch(watch_request(WatchOptions(capacity_blocks=40, window_requests=500)))
        with closing(Follower(path if random.random() < 0.5 else folder)) as follower:
            self.number, self.rest = 0, b""
            for _ in range(STEPS):
                path, expected = self._change(random, path, follower.path)
                lines = _look(follower)
                watch.add(lines, switched=random.random() < 0.2)
                if [line for line in lines if line.startswith(b"{")] != expected:
                    raise Harm(f"{expected} written, {lines} read")
        with suppress(KvscopeError):  # nothing to replay
            measure(watch.window, watch.request)
        return STEPS

    def _change(self, random: Random, path: Path, followed: Path) -> tuple[Path, list[bytes]]:
        """Change the file; return it and the whole lines that are to be read."""
        kind = random.randrange(9)
        lines = [self._line(random) for _ in range(random.choice((0, 1, 3, 40)))]
        if kind < 4:  # more lines, the last one maybe in two steps
            rest = self._line(random)[: random.randrange(20)] if kind == 3 else b""
            with path.open("ab") as file:
                file.write(
                    (b"\n" if self.rest else b"") + b"".join(x + b"\n" for x in lines) + rest
                )
            begun, self.rest = self.rest, rest
            return path, [*([begun] if begun[:1] == b"{" else []), *lines]
        if kind == 4:  # truncated, and grown again: to less, or beyond what it was
            path.write_bytes(b"".join(line + b"\n" for line in lines))
        elif kind == 5:  # replaced
            new = path.with_name("new")
            new.write_bytes(b"".join(line + b"\n" for line in lines))
            new.replace(path)
        elif kind == 6:  # removed, and made anew
            path.unlink(missing_ok=True)
            path.write_bytes(b"".join(line + b"\n" for line in lines))
        elif kind == 7 and followed.is_dir():  # the next file of the recording
            number = int(path.stem.rpartition("-")[2]) + 1
            path = path.with_name(f"recording-a-{number:05}.jsonl")
            path.write_bytes(b"".join(line + b"\n" for line in lines))
        else:  # no lines of a recording
            data = mutated_bytes(random, b"[" + os.urandom(random.choice((0, 300)))).lstrip(b"{ ")
            data = b"[" + data.replace(b"\n{", b"\n[")
            with path.open("ab") as file:
                file.write((b"\n" if self.rest else b"") + data + b"\n")
            lines = [self.rest] if self.rest[:1] == b"{" else []
        self.rest = b""
        return path, lines

    def _line(self, random: Random) -> bytes:
        self.number += 1
        return json.dumps(
            {
                "chat_id": self.number,
                "parent_chat_id": -1,
                "timestamp": float(self.number),
                "input_length": 32,
                "output_length": random.randrange(9),
                "hash_ids": [random.randrange(99), self.number],
            }
        ).encode()


def _look(follower: Follower) -> list[bytes]:
    """Return the lines that a few looks find."""
    lines, empty = list[bytes](), 0
    while empty < 3:
        new = follower.lines()
        empty = 0 if new else empty + 1
        lines += new
    return lines
