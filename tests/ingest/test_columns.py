"""Hash ids and requests become columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.errors import InputError
from kvscope.ingest.columns import Columns
from kvscope.ingest.formats.base import BadLine, ReadOptions, Records, Rejects, Request
from kvscope.ingest.hash_ids import decoded, gathered, key, parse
from kvscope.ingest.limits import MAX_HASH_IDS, MAX_TOKENS
from tests import small_traces


def request(**fields: object) -> Request:
    """Return a request of 40 and 4 tokens with these fields besides."""
    return Request(**({"input_tokens": 40, "output_tokens": 4} | fields))  # type: ignore[arg-type]


Record = Sequence[Request] | BadLine


def settled(
    *records: Record, default: int = 16, options: ReadOptions | None = None, at_once: int = 100
) -> tuple[Columns, Rejects]:
    """Return the columns that these records make, a line each, and what they refuse."""
    rejects = Rejects("trace")
    columns = Columns(default, options or ReadOptions(), rejects)
    for first in range(0, len(records), at_once):
        columns.add(read(first + 1, *records[first : first + at_once]))
    return columns, rejects


def read(first: int, *records: Record) -> Records:
    """Return what a reader makes of these, of which a BadLine is one that it refuses."""
    made = Records()
    for line, record in enumerate(records, first):
        if isinstance(record, BadLine):
            made.refuse(line, str(record))
        else:
            made.add(line, record)
    return made


@given(st.integers(-(2**63), 2**64 - 1))
def test_64_bit_integers_keep_apart(number: int) -> None:
    """Signed and unsigned 64-bit ids are themselves, modulo 2^64, as int and as decimal string."""
    assert -(2**63) <= key(number) < 2**63
    assert (key(number) - number) % 2**64 == 0
    if number >= 0:
        assert key(str(number)) == key(number)


@given(st.one_of(st.text(), st.integers(), st.sampled_from(["007", "+7", " 7", "7.0", "٧", ""])))
def test_any_identifier_has_a_key(identifier: int | str) -> None:
    """Whatever stands for an id becomes one signed 64-bit number, always the same."""
    assert -(2**63) <= key(identifier) < 2**63
    assert key(identifier) == key(identifier)


def test_strings_are_told_apart() -> None:
    """Hex ids and spellings of one number are different ids; so are integers beyond 64 bits."""
    told: list[int | str] = [
        "ff",
        "FF",
        "0xff",
        "007",
        "7",
        "٧",
        "",
        str(2**64 + 7),
        2**65,
        -(2**64),
        "9" * 5000,
    ]
    assert len({key(one) for one in told}) == len(told)
    assert key("9f86d081884c7d65") == key("9f86d081884c7d65")
    assert key(2**70) == key(str(2**70))


def test_strings_and_integers_mix_in_one_prompt() -> None:
    """A string among the hash ids changes nothing about the integers beside it."""
    plain = request(hash_ids=[5, 6, 7])
    mixed = request(hash_ids=[5, "6", "abc"])
    huge = request(hash_ids=[2**64 - 1, 5])
    made = small_traces.built([plain, mixed, huge], 16)
    leaves = made.requests["leaf"]
    assert small_traces.path(made, int(leaves[1])) == [5, 6, key("abc")]
    assert small_traces.path(made, int(leaves[2])) == [-1, 5]
    assert made.trie.parent[leaves[0]] == made.trie.parent[leaves[1]]


def test_scoped_ids_mean_something_in_their_session_only() -> None:
    """The same local ids in two sessions are different blocks, in one session the same."""
    trace = [request(hash_ids=[1, 2], scope=name) for name in ("a", "b", "a")]
    leaves = small_traces.built(trace, 16).requests["leaf"]
    assert leaves[0] == leaves[2] != leaves[1]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input_tokens": 0}, "input tokens must be 1 or more: 0"),
        ({"input_tokens": 2**31 - 1}, "request longer than 16,777,216 tokens with its output"),
        ({"input_tokens": 2**70}, "request longer than"),
        ({"output_tokens": -1}, "output tokens must be 0 or more: -1"),
        ({"output_tokens": MAX_TOKENS - 39}, "with its output: 16777217"),
        ({"arrival_s": float("nan")}, "arrival time must be within 1e+12 s of 0: nan s"),
        ({"arrival_s": float("inf")}, "arrival time must be within"),
        ({"arrival_s": -1.7e15}, "arrival time must be within 1e+12 s of 0: -1.7e+15 s"),
        ({"delay_s": float("-inf")}, "delay must be 0 to 1e+12 s: -inf s"),
        ({"delay_s": float("nan")}, "delay must be 0 to 1e+12 s: nan s"),
        ({"delay_s": -50_000.0}, "delay must be 0 to 1e+12 s: -50000 s"),
        ({"delay_s": 1e305}, "delay must be 0 to 1e+12 s: 1e+305 s"),
        ({"turn": 2**31}, "turn must be below"),
        ({"block_size": 0}, "block size must be 1 or more: 0"),
        ({"block_size": 2**31}, "block size must be 1 or more: 2147483648"),
        ({"block_size": 32}, "block size differs within the trace: 32 after 16"),
        ({"hash_ids": [1, 2, 3, 4]}, "4 ids, but 40 tokens are 3 blocks of 16"),
        ({"hash_ids": msgspec.Raw(b"[1,2,3,4]")}, "4 ids, but 40 tokens are 3 blocks of 16"),
        ({"hash_ids": [1] * (MAX_HASH_IDS + 1)}, "request with more than 1,048,576 hash ids"),
        ({"hash_ids": msgspec.Raw(b"[" + b"1," * MAX_HASH_IDS + b"1]")}, "1,048,576 hash ids: use"),
        ({"hash_ids": msgspec.Raw(b"[1,2.5]")}, "Expected `int | str`, got `float` - at `$.hash"),
    ],
)
def test_a_bad_request_spoils_its_record_only(fields: dict[str, object], reason: str) -> None:
    """The record is refused with the reason, and none of its requests is added."""
    good, bad = request(chat_id=2), request(**fields)
    first, last = request(block_size=16, chat_id=1), request(chat_id=3)
    for at_once in (1, 100):  # one by one, the block size is settled when it comes
        columns, rejects = settled((first,), (good, bad), (last,), at_once=at_once)
        assert columns.arrays()["chat_id"].tolist() == [1, 3]
        assert rejects.accepted == len(columns) == 2
        assert [line for line, _ in rejects.lines] == [2]
        assert reason in rejects.lines[0][1]


def test_what_is_refused_is_told_in_file_order() -> None:
    """Whether the reader refuses a line or the columns do, and however long a batch takes."""
    bad, good = (request(input_tokens=0),), (request(),)
    records: list[Record] = [bad, BadLine("unreadable"), good, (), bad] * 500
    columns, rejects = settled(*records)
    assert len(columns) == 500
    assert rejects.accepted == 1000
    assert [line for line, _ in rejects.lines] == [
        line for line in range(1, 2501) if line % 5 not in (3, 4)
    ]
    assert rejects.reasons == {"input tokens must be 1 or more": 1000, "unreadable": 500}
    strict = Columns(16, ReadOptions(), Rejects("trace", strict=True))
    with pytest.raises(InputError, match=r"^trace:8: input tokens must be 1 or more: 0"):
        strict.add(read(7, good, bad, BadLine("unreadable")))


def test_the_first_record_settles_the_block_size() -> None:
    """What a record says wins over the option, the option over the format's default."""
    for said, option, size in [(32, 64, 32), (None, 64, 64), (None, None, 512)]:
        told = (request(block_size=said),)
        columns, _ = settled(told, default=512, options=ReadOptions(block_size=option))
        assert columns.block_size == size


@pytest.mark.parametrize("at_once", [1, 100])
def test_what_has_no_hashes_settles_no_block_size(at_once: int) -> None:
    """The first request that has hashes or a size does, however many come before it."""
    bare, told = (request(),), (request(block_size=20, hash_ids=[1, 2]),)
    columns, rejects = settled(bare, bare, told, told, default=512, at_once=at_once)
    assert (columns.block_size, len(columns), rejects.count) == (20, 4, 0)
    columns, rejects = settled(bare, (request(hash_ids=[1]),), told, default=512, at_once=at_once)
    assert (columns.block_size, len(columns)) == (512, 2)
    assert "block size differs within the trace: 20 after 512" in rejects.lines[0][1]
    assert settled(bare, default=512, at_once=at_once)[0].block_size == 512


def test_delays_do_not_add_up_beyond_all_clocks() -> None:
    """Each is small enough, all of them together are not: told at once or one by one."""
    waits = [(request(delay_s=0.6e12, session_id="a", chat_id=at),) for at in range(3)]
    for at_once in (1, 100):
        columns, rejects = settled(*waits, at_once=at_once)
        assert columns.arrays()["chat_id"].tolist() == [0]
        assert rejects.reasons == {"delays add up to more than 1e+12 s": 2}


@pytest.mark.parametrize("said", [(16, 32), (None, 32), (0, 16)])
def test_a_first_record_has_one_block_size_too(said: tuple[int | None, int]) -> None:
    """A first record whose requests differ in their block size is refused, and settles nothing."""
    mixed = tuple(request(block_size=size, hash_ids=[1]) for size in said)
    columns, rejects = settled(mixed, (request(block_size=64),))
    assert [line for line, _ in rejects.lines] == [1]
    assert columns.block_size == 64


def test_requests_without_a_time_follow_their_predecessor() -> None:
    """A delay counts from the session's last answer, no time at all from the line before."""
    trace = [
        request(arrival_s=10.0, session_id="a", output_tokens=100),
        request(arrival_s=11.0, session_id="b"),
        request(delay_s=5.0, session_id="a"),
        request(session_id="c"),
    ]
    columns, _ = settled(*((one,) for one in trace))
    arrays = columns.arrays()
    assert arrays["arrival_s"].tolist() == [10.0, 11.0, 17.0, 17.0]
    assert arrays["session"].tolist() == [0, 1, 0, 3]  # the row of its first request
    assert columns.gaps.untimed == 2


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 1000), st.integers(1, 600), st.integers(1, 100))
def test_batches_do_not_show(seed: int, count: int, at_once: int) -> None:
    """However many records are added at once, the columns are the same."""
    rng = np.random.default_rng(seed)
    told = [
        request(
            input_tokens=int(rng.integers(32, 100)),
            hash_ids=rng.integers(0, 3, int(rng.integers(0, 3))).tolist(),
            chat_id=at if rng.random() < 0.9 else f"chat-{at}",
            user_id=None if rng.random() < 0.5 else at % 7,
            type=str(rng.choice(["a", "b"])),
            arrival_s=None if rng.random() < 0.01 else float(at),
        )
        for at in range(count)
    ]
    columns, _ = settled(*((one,) for one in told), at_once=at_once)
    whole, _ = settled(told)
    for name, values in columns.arrays().items():
        assert np.array_equal(values, whole.arrays()[name])
    assert columns.arrays()["chat_id"].tolist() == [key(one.chat_id) for one in told]  # type: ignore[arg-type]
    assert columns.arrays()["blocks"].tolist() == [len(one.hash_ids or ()) for one in told]
    assert columns.gaps == whole.gaps


@pytest.mark.parametrize("turn", [None, 0, -1, -(2**63), -(2**70)])
def test_a_turn_that_is_none_is_not_told(turn: int | None) -> None:
    """Whatever is below 1, and be it beyond 64 bits: the turn is taken from the lineage."""
    columns, rejects = settled([request(turn=turn)], [request(turn=2)])
    assert columns.arrays()["turn"].tolist() == [0, 2]
    assert (rejects.accepted, rejects.count) == (2, 0)


SPACES = st.text(" \t\r", max_size=2).map(str.encode)
EDGES = [0, -1, 9, 10, 2**63 - 1, 2**63, 2**64 - 10, 2**64 - 1, 2**64, 10**19, 10**20]
INTEGERS = st.one_of(st.integers(-(2**65), 2**65), st.sampled_from([*EDGES, *(-x for x in EDGES)]))
JSON_BYTES = st.lists(st.sampled_from(b'[[]],,-019 \t\r.eE+nul"ax{}\\\x00'), max_size=8).map(bytes)


class _Line(msgspec.Struct):
    hash_ids: msgspec.Raw


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
@given(st.lists(st.one_of(arrays(), st.just(b"")), max_size=4))
def test_integers_are_read_as_msgspec_reads_them(lines: list[bytes]) -> None:
    """All that fit in 64 bits, signed or not; a line with others is left to msgspec."""
    told = [decoded(msgspec.Raw(line)) or [] for line in lines]
    fit = all(-(2**63) <= one < 2**64 for ids in told for one in ids if isinstance(one, int))
    assert parsed(*lines) == ([[key(one) for one in ids] for ids in told] if fit else None)


@settings(deadline=None, max_examples=500)
@given(arrays(), st.floats(0, 1), st.integers(0, 3), JSON_BYTES)
def test_nothing_is_read_that_msgspec_refuses(
    line: bytes, where: float, gone: int, instead: bytes
) -> None:
    """Whatever damage an array takes that leaves it JSON, the kernel reads as msgspec does."""
    at = round(where * len(line))
    damaged = line[:at] + instead + line[at + gone :]
    found = parsed(damaged)  # of what is no JSON, too: nothing but its memory is touched
    try:
        raw = msgspec.json.decode(b'{"hash_ids":%b}' % damaged, type=_Line).hash_ids
    except msgspec.DecodeError:
        return
    if found is not None:
        assert found == [[key(one) for one in decoded(raw) or ()]]


REFUSED = [b"[1.5]", b"[1e2]", b"1", b"[[1]]", b"[null]", b"{}", b'""', b'["a", [1]]', b"[{}]"]


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
