"""Units, addresses, arrays, records, paths and queues of blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from kvscope.core import units
from kvscope.core.arrays import distinct
from kvscope.core.block_queues import NOTES, ring_forget, ring_length, ring_remember, ring_take
from kvscope.core.errors import (
    ExitCode,
    InputError,
    UsageError,
    require_whole_addresses,
    without_secrets,
)
from kvscope.core.jit import kernel
from kvscope.core.prefix import ancestor, write_path
from kvscope.core.records import as_columns, defaults
from kvscope.replay.kernels.queues import empty_rings

ACCEPTED: list[tuple[Callable[[str], float], str, float]] = [
    (units.parse_duration, "200ms", 0.2),
    (units.parse_duration, "1.5s", 1.5),
    (units.parse_duration, "10m", 600),
    (units.parse_duration, "10min", 600),
    (units.parse_duration, "2h", 7_200),
    (units.parse_duration, "1d", 86_400),
    (units.parse_duration, "50us", 5e-5),
    (units.parse_duration, "0s", 0),
    (units.parse_duration, "0", 0),
    (units.parse_duration, "1.5 s", 1.5),
    (units.parse_size, "16GiB", 16 * 2**30),
    (units.parse_size, "16gib", 16 * 2**30),
    (units.parse_size, "16 GIB", 16 * 2**30),
    (units.parse_size, "512MiB", 2**29),
    (units.parse_size, "1.5TiB", 3 * 2**39),
    (units.parse_size, "16GB", 16 * 10**9),
    (units.parse_size, "16gb", 16 * 10**9),
    (units.parse_size, "1kB", 1_000),
    (units.parse_size, "7B", 7),
    (units.parse_tokens, "2000", 2_000),
    (units.parse_tokens, "8k", 8_000),
    (units.parse_tokens, "8K", 8_000),
    (units.parse_tokens, "1.5k", 1_500),
    (units.parse_tokens, "1M", 1_000_000),
    (units.parse_percentile, "p95", 0.95),
    (units.parse_percentile, "p99.9", 0.999),
    (units.parse_percentile, "p100", 1),
    (units.parse_share, "5%", 0.05),
    (units.parse_share, "5 %", 0.05),
    (units.parse_share, "0.05", 0.05),
    (units.parse_share, "100%", 1),
    (units.parse_share, "0", 0),
    (units.parse_rate, "0.5/s", 0.5),
    (units.parse_rate, "30/min", 0.5),
    (units.parse_rate, "30/m", 0.5),
    (units.parse_rate, "36/h", 0.01),
    (units.parse_bandwidth, "25GB/s", 25e9),
    (units.parse_bandwidth, "6.5 gb/s", 6.5e9),
    (units.parse_bandwidth, "3.2GiB/s", 3.2 * 2**30),
    (units.parse_bandwidth, "7B/s", 7),
]

REFUSED: list[tuple[Callable[[str], float], list[str]]] = [
    (
        units.parse_duration,
        ["", "200", "ms", "1.s", ".5s", "-1s", "+1s", "1e3s", "1,5s", "1S", "1M", "1m30s", " 1s"],
    ),
    (
        units.parse_duration,
        ["1  s", "1s ", "nan", "inf", "infs", "1_0s", "\u0661s", "9" * 500 + "s"],
    ),
    (units.parse_size, ["", "16", "16G", "16Gi", "GiB", "-1GiB", "16XiB", "1e3GiB", "16GiB/s"]),
    (units.parse_size, ["16Gib", "16Gb", "16Mb", "16kIb", "16b"]),
    (units.parse_tokens, ["", "0.5", "1.0001k", "8m", "8ki", "2,000", "2_000", "-1", "8kB", "1G"]),
    (units.parse_percentile, ["", "p", "95", "95%", "p0", "p101", "P95", "p-5", "p 95", "0.95"]),
    (units.parse_share, ["", "5", "101%", "1.01", "-5%", "5pp", "%", "p5"]),
    (units.parse_rate, ["", "5", "5/", "/s", "0/s", "5s", "5/x", "5//s", "5 per s", "-1/s"]),
    (units.parse_bandwidth, ["", "25", "25GB", "25/s", "GB/s", "0GB/s", "25GB/min", "25XB/s"]),
    (units.parse_bandwidth, ["25Gb/s", "100Mb/s", "8b/s", "25GB /s", "25GB/s/s", "1e9B/s"]),
]


@pytest.mark.parametrize(("parse", "text", "value"), ACCEPTED)
def test_accepted(parse: Callable[[str], float], text: str, value: float) -> None:
    """What operators write means what they mean, to the last bit."""
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"), [(parse, text) for parse, texts in REFUSED for text in texts]
)
def test_refused(parse: Callable[[str], float], text: str) -> None:
    """Everything else is a usage error that names the value and what is right."""
    with pytest.raises(UsageError) as refusal:
        parse(text)
    assert refusal.value.exit_code == ExitCode.USAGE
    assert repr(text) in str(refusal.value)
    assert refusal.value.remedy is not None
    assert refusal.value.remedy.startswith("write ")


@pytest.mark.parametrize(
    "parse", list(dict.fromkeys(parse for parse, _ in REFUSED)), ids=lambda parse: parse.__name__
)
def test_examples_in_refusals_are_accepted(parse: Callable[[str], float]) -> None:
    """The remedy can be followed: every example that a refusal gives parses."""
    with pytest.raises(UsageError) as refusal:
        parse("")
    examples = str(refusal.value.remedy).removeprefix("write for example ")
    assert all(parse(example) > 0 for example in examples.replace(" or ", ", ").split(", "))


def test_bits_are_named() -> None:
    """Gib is refused for what it is, with the spelling of bytes."""
    with pytest.raises(UsageError, match=r"'16Gib' is in bits; write 16GiB if you mean bytes"):
        units.parse_size("16Gib")
    with pytest.raises(UsageError, match=r"'25Gb/s' is in bits; write 25GB/s if you mean bytes"):
        units.parse_bandwidth("25Gb/s")


@given(st.floats(min_value=1e-6, max_value=1e9))
def test_duration_round_trip(seconds: float) -> None:
    """A printed duration can be pasted as an option and means the same to three digits."""
    assert units.parse_duration(units.format_duration(seconds)) == pytest.approx(seconds, rel=0.011)


@given(st.integers(min_value=0, max_value=2**60))
def test_size_round_trip(size_bytes: int) -> None:
    """A printed size can be pasted as an option and means the same to three digits."""
    assert units.parse_size(units.format_size(size_bytes)) == pytest.approx(
        size_bytes, rel=0.006, abs=0.5
    )


@given(st.integers(min_value=1, max_value=1000))
def test_percentile_round_trip(tenths: int) -> None:
    """Every percentile with one decimal survives, exactly."""
    assert units.parse_percentile(units.format_percentile(tenths / 1000)) == tenths / 1000


@given(st.floats(min_value=0, max_value=1))
def test_share_round_trip(share: float) -> None:
    """A printed share means the same to its last decimal."""
    assert units.parse_share(units.format_share(share, 2)) == pytest.approx(share, abs=6e-5)


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_rate_round_trip(per_second: float) -> None:
    """A printed rate means the same to three digits."""
    assert units.parse_rate(units.format_rate(per_second)) == pytest.approx(per_second, rel=0.006)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_duration(0), "0s"),
        (units.format_duration(0.2034), "203ms"),
        (units.format_duration(0.9996), "1s"),
        (units.format_duration(1.5), "1.5s"),
        (units.format_duration(59.99), "1m"),
        (units.format_duration(612), "10.2m"),
        (units.format_duration(86_400), "1d"),
        (units.format_duration(-0.003), "-3ms"),
        (units.format_duration(float("nan")), "n/a"),
        (units.format_duration(float("inf")), "∞"),
        (units.format_size(0), "0 B"),
        (units.format_size(917_504), "896 KiB"),
        (units.format_size(524_288 * 10_000), "4.88 GiB"),
        (units.format_size(80 * 2**30), "80 GiB"),
        (units.format_size(1.5 * 2**40), "1.5 TiB"),
        (units.format_count(12_031), "12,031"),
        (units.format_share(0.1315, 2), "13.15%"),
        (units.format_share(0.62), "62.0%"),
        (units.format_pp(0.0126), "+1.3 pp"),
        (units.format_pp(-0.0126), "-1.3 pp"),
        (units.format_pp(-0.00001), "+0.0 pp"),
        (units.format_percentile(0.999), "p99.9"),
        (units.format_rate(0.5), "0.5/s"),
        (units.format_rate(0.05), "3/min"),
    ],
)
def test_formatted(text: str, expected: str) -> None:
    """The exact look of values, at the edges between units too."""
    assert text == expected


def test_capacity_in_all_units() -> None:
    """Blocks, tokens and bytes stand side by side; bytes only where a model is known."""
    assert units.blocks_tokens_bytes(5_637, block_size=512) == "5,637 blocks, 2,886,144 tokens"
    assert (
        units.blocks_tokens_bytes(5_637, block_size=512, bytes_per_token=131_072)
        == "5,637 blocks, 2,886,144 tokens, 352 GiB"
    )


def test_distinct_numbers_ascend() -> None:
    """As NumPy finds them, of the same type; of no numbers none."""
    one, other = np.array([[5, 3, 5, -1], [3, 7, 7, 5]], dtype=np.int32)
    assert distinct(one, other).tolist() == np.unique([one, other]).tolist() == [-1, 3, 5, 7]
    assert distinct(one).dtype == np.int32
    assert distinct(one[:0]).tolist() == []


class Base(Struct, frozen=True):
    """Has a field without a default."""

    name: str
    size: int = 3


class Derived(Base, frozen=True, kw_only=True):
    """Has one, too, behind a default, and types that nothing has imported."""

    rate: Unknown  # type: ignore[name-defined]  # noqa: F821
    whole: Base | None = None


def test_defaults_are_by_name() -> None:
    """Of a record and of what it inherits from; fields that must be stated are left out."""
    assert defaults(Base) == {"size": 3}
    assert defaults(Derived) == {"size": 3, "whole": None}


def test_records_within_records_become_columns() -> None:
    """Dates stay dates, tuples tuples, and numbers of NumPy become Python's own."""
    at = datetime(2026, 1, 2, tzinfo=UTC)
    record = Derived("a", rate=np.float64(0.5), whole=Base("b", size=np.int64(1)))  # type: ignore[arg-type]
    assert as_columns(record) == {
        "name": "a",
        "size": 3,
        "rate": 0.5,
        "whole": {"name": "b", "size": 1},
    }
    assert as_columns(Derived("a", rate=(at, 1))) == {
        "name": "a",
        "size": 3,
        "rate": (at, 1),
        "whole": None,
    }


#        0 root
#        1 ── 2 ── 4
#        └─ 3 ── 5
PARENT = np.array([0, 0, 1, 1, 2, 3], dtype=np.int32)


@kernel
def _paths(parent, leaves, starts, ids):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    for k in range(len(leaves)):
        write_path(parent, leaves[k], ids, starts[k], starts[k + 1])


@kernel
def _ancestors(parent, block, steps):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return ancestor(parent, block, steps)


def test_paths_stand_head_first_one_behind_the_other() -> None:
    """Each path fills its own stretch; one of no blocks fills nothing."""
    leaves = np.array([4, 0, 5, 1], dtype=np.int32)
    starts = np.array([0, 3, 3, 6, 7])
    ids = np.full(8, -1, dtype=np.int32)
    _paths(PARENT, leaves, starts, ids)
    assert ids.tolist() == [1, 2, 4, 1, 3, 5, 1, -1]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_path_is_its_leafs_ancestors(data: st.DataObject) -> None:
    """On random tries, block by block, compiled and uncompiled alike."""
    size = data.draw(st.integers(1, 12))
    above = [0, *(data.draw(st.integers(0, block - 1)) for block in range(1, size + 1))]
    parent = np.array(above, dtype=np.int32)
    leaf = data.draw(st.integers(1, size))
    expected = [leaf]
    while above[expected[-1]]:
        expected.append(above[expected[-1]])
    depth = len(expected)
    path = np.zeros(depth, dtype=np.int32)
    write_path(parent, leaf, path, 0, depth)
    assert path[::-1].tolist() == expected
    for steps in range(depth + 2):
        found = expected[steps] if steps < depth else 0
        assert _ancestors(parent, np.int32(leaf), steps) == found
        assert ancestor(parent, leaf, steps) == found


BLOCKS, QUEUE = 12, 1


@given(st.integers(1, 6), st.lists(st.tuples(st.sampled_from("rft"), st.integers(0, 99))))
def test_a_ring_is_a_queue(most: int, steps: list[tuple[str, int]]) -> None:
    """Whatever is remembered, forgotten and taken: order and length are kept, holes closed up."""
    rings = empty_rings(QUEUE + 1, BLOCKS, most)
    expected = deque[int]()
    for step, number in steps:
        others = [block for block in range(BLOCKS) if block not in expected]
        if step == "r" and len(expected) < most:
            block = others[number % len(others)]
            ring_remember(rings, QUEUE, block)
            expected.append(block)
        elif step == "f" and expected:
            block = expected[number % len(expected)]
            ring_forget(rings, QUEUE, block)
            expected.remove(block)
            assert rings[NOTES, block] == 0
        elif step == "t" and expected:
            block = ring_take(rings, QUEUE)
            assert block == expected.popleft()
            rings[NOTES, block] = 0
        assert ring_length(rings, QUEUE) == len(expected)
        assert {block for block in range(BLOCKS) if rings[NOTES, block] < 0} == set(expected)


def test_closing_up() -> None:
    """One block stays while others come and are forgotten, far beyond the slots there are."""
    rings = empty_rings(QUEUE + 1, BLOCKS, 2)
    ring_remember(rings, QUEUE, 0)
    for _ in range(100):
        ring_remember(rings, QUEUE, 1)
        ring_forget(rings, QUEUE, 1)
    assert ring_length(rings, QUEUE) == 1
    assert ring_take(rings, QUEUE) == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host:9/a.jsonl?X-Amz-Signature=1", "https://host:9/a.jsonl"),
        ('no "http://me:p@w@host/x" there', 'no "http://host/x" there'),
        ("'https://h/a?b=1' s3://bucket/p?.jsonl", "'https://h/a' s3://bucket/p?.jsonl"),
        ("hf://datasets/o/n@main/x.jsonl", "hf://datasets/o/n@main/x.jsonl"),
        ("a.jsonl?: me@home", "a.jsonl?: me@home"),
        ("'me:pw@host' is no address", "'host' is no address"),
        ("er:p@w@host/t: no such file", "host/t: no such file"),
    ],
)
def test_addresses_lose_user_and_query(text: str, shown: str) -> None:
    """Wherever they stand in a text; patterns of S3 stay, as do names with an @."""
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    ("argument", "whole"),
    [
        ("https://me:p w@host/a.jsonl", False),
        ("--url=https://me:p w@host/", False),
        ("https://host/a?sig=1 2", False),
        ("https://me:pw", False),  # and a second argument: what follows a space
        ("https://me:1w/", False),
        ("s3://me:p w@host/a", False),
        ("https://me:pw@host:9/a.jsonl", True),
        ("s3://bucket/my file?.jsonl", True),
        ("https://host:9/my%20file?sig=1%202", True),
        ("http://[::1]:8000/v1", True),
        ("hf://datasets/o/n@main/my file.jsonl", True),
        ("ray://head:10001", True),
        ("why? https://host/x y", True),
    ],
)
def test_an_address_in_parts_is_refused_unread(argument: str, whole: bool) -> None:
    with nullcontext() if whole else pytest.raises(UsageError) as refused:
        require_whole_addresses(["analyze", argument])
    if refused:
        assert str(refused.value) == (
            "argument 2: no whole address; put it in quotes, and write a space in it as %20"
        )


def test_errors_show_no_secret() -> None:
    """For every face: the fields and the line of an error are without them."""
    error = InputError("gone", where="https://me:pw@h/x?sig=1", remedy="see http://me:pw@h/")
    assert str(error) == "https://h/x: gone; see http://h/"
