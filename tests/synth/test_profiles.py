"""Profiles by name, and traces written from them."""

import gzip
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import sample_profiles
from benchmarks.profiles import PROFILES
from kvscope.core.errors import UsageError
from kvscope.synth import profiles
from kvscope.synth.base import ROOT, Profile, Record
from kvscope.synth.profiles import by_name, write_jsonl
from tests.cli.shell import Streams

PROFILE_NAMES = sorted(PROFILES)
FIELDS = [
    "chat_id",
    "parent_chat_id",
    "user_id",
    "timestamp",
    "input_length",
    "output_length",
    "type",
    "turn",
    "hash_ids",
]


def brief(name: str) -> Profile:
    """Return the profile with a short lead-in: traffic before time 0 takes most time."""
    profile: Any = PROFILES[name]
    short: Profile = replace(profile, lead_in_s=900.0) if hasattr(profile, "lead_in_s") else profile
    return short


def block_tokens(record: Record) -> int:
    """Block size of a record."""
    return record.block_size if isinstance(record.block_size, int) else 16


@given(name=st.sampled_from(PROFILE_NAMES), seed=st.integers(0, 2**32), requests=st.integers(0, 80))
@settings(max_examples=60, deadline=None)
def test_schema(name: str, seed: int, requests: int) -> None:
    """Lengths, order and ids of the records are those of the format."""
    records = list(brief(name).generate(requests=requests, seed=seed))
    assert len(records) == requests
    assert all(a.timestamp <= b.timestamp for a, b in pairwise(records))
    assert all(record.timestamp >= 0 for record in records)
    assert len({record.chat_id for record in records}) == requests
    for record in records:
        assert record.input_length >= 1
        assert record.output_length >= 1
        assert len(record.hash_ids) == -(-record.input_length // block_tokens(record))
        assert len(set(record.hash_ids)) == len(record.hash_ids)
        assert (record.turn == 1) == (record.parent_chat_id == ROOT)


@given(name=st.sampled_from(PROFILE_NAMES), seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_a_child_carries_its_parent(name: str, seed: int) -> None:
    """A next turn starts with its parent's full blocks, and is as long as its history.

    The exception is an agent whose context was compacted: a shorter prompt on another path.
    """
    seen: dict[int, Record] = {}
    for record in brief(name).generate(requests=150, seed=seed):
        seen[record.chat_id] = record
        parent = seen.get(record.parent_chat_id)
        if parent is None:
            continue
        assert record.turn == parent.turn + 1
        assert (record.user_id, record.type) == (parent.user_id, parent.type)
        history_tokens = parent.input_length + parent.output_length
        if record.input_length < history_tokens:
            assert name == "agent"
            assert record.hash_ids[0] == parent.hash_ids[0]
            continue
        full_blocks = parent.input_length // block_tokens(parent)
        assert record.hash_ids[:full_blocks] == parent.hash_ids[:full_blocks]
        # A partial last block is another block once it is full.
        assert not set(parent.hash_ids[full_blocks:]) & set(record.hash_ids)


@pytest.mark.parametrize("name", PROFILE_NAMES)
def test_one_path_a_block(name: str) -> None:
    """A block id always follows the same block: ids are nodes of a trie, as in vLLM."""
    before: dict[int, int] = {}
    for record in brief(name).generate(requests=300, seed=5):
        for previous, block in pairwise([-1, *record.hash_ids]):
            assert before.setdefault(block, previous) == previous


@pytest.mark.parametrize("name", PROFILE_NAMES)
def test_determinism(name: str) -> None:
    """The same seed gives the same records, another seed gives others; a prefix stays a prefix."""
    profile = brief(name)
    records = list(profile.generate(requests=200, seed=1))
    assert records == list(profile.generate(requests=200, seed=1))
    assert records[:50] == list(profile.generate(requests=50, seed=1))
    assert records != list(profile.generate(requests=200, seed=2))


@pytest.mark.parametrize("name", PROFILE_NAMES)
def test_fields(name: str) -> None:
    """Records carry the format's fields in its order; blocks not of 16 tokens are spelled out."""
    (record,) = brief(name).generate(requests=1, seed=1)
    document = msgspec.json.decode(msgspec.json.encode(record))
    sizes = dict.fromkeys(("agent", "scan", "time-of-day"), 64)
    sizes |= dict.fromkeys(("regime-change", "alternating"), 512)
    size = sizes.get(name)
    assert list(document) == FIELDS + (["block_size"] if size else [])
    assert document.get("block_size") == size


def test_names() -> None:
    """Profiles are found by name; a wrong name gets the nearest one."""
    assert all(by_name(name).name == name for name in profiles.PROFILES)
    with pytest.raises(UsageError, match="did you mean to-c"):
        by_name("to_c")
    with pytest.raises(UsageError, match="agent"):
        by_name("?")


def test_bad_parameters() -> None:
    """A parameter out of range is refused by name, a negative length too."""
    profile: Any = PROFILES["birth-death"]
    with pytest.raises(ValueError, match="death_rate_per_s is 0"):
        replace(profile, death_rate_per_s=0)
    with pytest.raises(ValueError, match="block_size is 0"):
        replace(profile, block_size=0)
    with pytest.raises(ValueError, match=r"engaged_share is 1\.5"):
        replace(by_name("to-c"), engaged_share=1.5)  # type: ignore[type-var]
    with pytest.raises(UsageError, match="negative"):
        next(by_name("to-b").generate(requests=-1, seed=0))


SAMPLE_FOLDER = Path(__file__).parents[2] / "sample_traces"


def read(path: Path) -> bytes:
    """Return the lines of a trace file, unpacked."""
    packed = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(packed)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    return packed


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_bytes(tmp_path: Path, ending: str) -> None:
    """Written twice, under two names: equal bytes that decode to the records."""
    profile = PROFILES["birth-death"]
    for name in ("a", "b"):
        records = profile.generate(requests=100, seed=4)
        assert write_jsonl(records, tmp_path / f"{name}.{ending}") == 100
    first, second = tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"
    assert first.read_bytes() == second.read_bytes()
    lines = read(first).splitlines()
    decoded = [msgspec.json.decode(line, type=Record) for line in lines]
    assert decoded == list(profile.generate(requests=100, seed=4))
    other = tmp_path / f"c.{ending}"
    write_jsonl(profile.generate(requests=100, seed=5), other)
    assert other.read_bytes() != first.read_bytes()


def test_half_a_trace_is_no_trace(tmp_path: Path) -> None:
    """When the records break off, neither the file nor its beginning is left behind."""

    def broken() -> object:
        yield from PROFILES["birth-death"].generate(requests=3, seed=1)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_jsonl(broken(), tmp_path / "trace.jsonl.gz")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """A pipe (or /dev/null) is written to, not put aside for a file of its name."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_jsonl(PROFILES["birth-death"].generate(requests=1, seed=1), pipe)
    assert os.read(reader, 100_000).endswith(b"}\n")
    os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("sample", sample_profiles.SAMPLES, ids=lambda sample: sample.profile)
def test_samples_regenerate(tmp_path: Path, sample: sample_profiles.SampleTrace) -> None:
    """The shipped files hold what their profiles generate.

    Compared unpacked: another zlib may pack the same lines into other bytes.
    """
    path = sample_profiles.write_sample(sample, tmp_path)
    assert read(path) == read(SAMPLE_FOLDER / sample.file)
    assert (SAMPLE_FOLDER / sample.file).stat().st_size < 1.1e6


def test_samples_usage(capsys: Streams) -> None:
    """Without a folder the command says what it takes."""
    assert sample_profiles.main([]) == 2
    assert "FOLDER" in capsys.readouterr().err
