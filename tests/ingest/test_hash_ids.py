"""The kernel that reads hash ids takes what msgspec takes, for the same numbers."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.ingest.formats.base import BadLine
from kvscope.ingest.hash_ids import decoded, gathered, key, parse

SPACES = st.text(" \t\r", max_size=2).map(str.encode)
EDGES = [0, -1, 9, 10, 2**63 - 1, 2**63, 2**64 - 10, 2**64 - 1, 2**64, 10**19, 10**20]
INTEGERS = st.one_of(st.integers(-(2**65), 2**65), st.sampled_from([*EDGES, *(-x for x in EDGES)]))
JSON_BYTES = st.lists(st.sampled_from(b'[[]],,-019 \t\r.eE+nul"ax{}\\\x00'), max_size=8).map(bytes)


def parsed(*lines: bytes) -> list[list[int]] | None:
    """Return what the kernel makes of these lines; None where it finds them unusual."""
    text = b"".join(line + b"\n" for line in lines)
    starts = np.empty(len(lines) + 1, dtype=np.int64)
    ids = np.empty(len(text) // 2, dtype=np.int64)
    count = parse(np.frombuffer(text, dtype=np.uint8), starts, ids)
    return None if count < 0 else [ids[a:b].tolist() for a, b in pairwise(starts)]


@st.composite
def arrays(draw: st.DrawFn) -> bytes:
    """Return a JSON array of integers, with spaces wherever there may be some."""
    words = [draw(SPACES) + str(one).encode() + draw(SPACES) for one in draw(st.lists(INTEGERS))]
    return b"[" + (b",".join(words) or draw(SPACES)) + b"]"


@settings(deadline=None)
@given(st.lists(st.one_of(arrays(), st.sampled_from([b"", b"null"])), max_size=4))
def test_integers_are_read_as_msgspec_reads_them(lines: list[bytes]) -> None:
    """All that fit in 64 bits, signed or not; a line with others is left to msgspec."""
    told = [decoded(msgspec.Raw(line)) or [] for line in lines]
    fit = all(-(2**63) <= one < 2**64 for ids in told for one in ids if isinstance(one, int))
    assert parsed(*lines) == ([[key(one) for one in ids] for ids in told] if fit else None)


@settings(deadline=None, max_examples=200)
@given(arrays(), st.floats(0, 1), st.integers(0, 3), JSON_BYTES)
def test_nothing_is_read_that_msgspec_refuses(
    line: bytes, where: float, gone: int, instead: bytes
) -> None:
    """Whatever damage an array takes, the kernel reads what msgspec reads, or nothing."""
    at = round(where * len(line))
    damaged = line[:at] + instead + line[at + gone :]
    found = parsed(damaged)
    if found is not None:
        assert found == [[key(one) for one in decoded(msgspec.Raw(damaged)) or ()]]


REFUSED = [
    b"[01]",
    b"[00]",
    b"[-01]",
    b"[+1]",
    b"[1,,2]",
    b"[1,]",
    b"[,1]",
    b"[,]",
    b"[1 2]",
    b"[- 1]",
    b"[-]",
    b"[1.5]",
    b"[1e2]",
    b"[1",
    b"[",
    b"1",
    b"[[1]]",
    b"[1]]",
    b"[1] [2]",
    b"[null]",
    b"nul",
    b"nulll",
    b"[0x1]",
    b"[1\x0b]",
    b"[\xc2\xa01]",
    b"{}",
    b'""',
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_array_of_integers_is_refused(text: bytes) -> None:
    """By the kernel, and by msgspec, whose word counts."""
    assert parsed(text) is None
    assert parsed(b"[1]", text) is None
    with pytest.raises(BadLine):
        gathered([msgspec.Raw(b"[1]"), msgspec.Raw(text)])


def test_a_line_feed_within_an_array_ends_no_prompt() -> None:
    """JSON text may hold line feeds; they must not shift ids from prompt to prompt."""
    broken = msgspec.Raw(b"[1,\n2]"), msgspec.Raw(b"[3]")
    starts, ids = gathered(broken)
    assert (starts.tolist(), ids.tolist()) == ([0, 2, 3], [1, 2, 3])
    with pytest.raises(BadLine):
        gathered([msgspec.Raw(b"[1]\n[2]"), msgspec.Raw(b"[3]")])


def test_whatever_names_the_blocks_is_gathered_alike() -> None:
    """JSON text, lists, strings, integers of any size, nothing at all: mixed as they come."""
    told = [[5, 2**64 - 1], None, msgspec.Raw(), msgspec.Raw(b'[7,"a0", 18446744073709551616]')]
    starts, ids = gathered(told)
    assert starts.tolist() == [0, 2, 2, 2, 5]
    assert ids.tolist() == [5, -1, 7, key("a0"), key(2**64)]
