"""An ingest is whole, once, or not at all."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.core.errors import ExitCode, InputError, UsageError
from kvscope.core.trace import PromptPaths
from kvscope.ingest.build import Built
from kvscope.ingest.formats.base import ReadOptions
from kvscope.ingest.pipeline import IngestOptions, ingest
from kvscope.store import traces
from kvscope.store.db import MEMORY, Store, open_store
from kvscope.store.traces import load_prompts

TABLES = ("traces", "requests", "blocks", "each_block", "block_groups", "reuses", "bad_lines")


def lines(count: int, blocks: int = 3) -> list[str]:
    """Mooncake lines whose prompts share their first block."""
    return [
        json.dumps(
            {
                "timestamp": at,
                "input_length": 512 * blocks,
                "output_length": 8,
                "hash_ids": [0, *range(at * blocks + 1, at * blocks + blocks)],
            }
        )
        for at in range(count)
    ]


def write(path: Path, told: list[str]) -> str:
    """Return a trace file with these lines."""
    path.write_text("".join(f"{line}\n" for line in told))
    return str(path)


def rows(store: Store) -> dict[str, int]:
    """How many rows each table holds."""
    tables = (store._connection.table(table) for table in TABLES)
    return {table.alias: len(table) for table in tables}


def test_twice_is_once(tmp_path: Path) -> None:
    """The same bytes, plain, compressed or under another name, are the same trace."""
    plain = write(tmp_path / "a.jsonl", lines(20))
    copy = write(tmp_path / "b.jsonl", lines(20))
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(plain).read_bytes()))
    with open_store(MEMORY) as store:
        first = ingest(store, plain)
        before = rows(store)
        again = [ingest(store, path) for path in (plain, copy, str(packed))]
        forced = ingest(store, plain, IngestOptions(format="mooncake"))
        assert rows(store) == before
    assert first.created
    assert not any(one.created for one in [*again, forced])
    assert {one.trace.trace_id for one in [*again, forced]} == {first.trace.trace_id}


def test_read_otherwise_is_another_trace(tmp_path: Path) -> None:
    """Another block size is another reading of the file, under a name of its own."""
    path = write(tmp_path / "a.jsonl", lines(5))
    with open_store(MEMORY) as store:
        first = ingest(store, path)
        other = ingest(store, path, IngestOptions(read=ReadOptions(block_size=256)))
        named = ingest(store, write(tmp_path / "x.jsonl", lines(6)), IngestOptions(name="mine"))
        assert [trace.name for trace in traces.all_traces(store)] == ["mine", "a-2", "a"]
        with pytest.raises(InputError, match="a trace called 'mine' is already there"):
            ingest(store, write(tmp_path / "y.jsonl", lines(7)), IngestOptions(name="mine"))
        assert len(traces.all_traces(store)) == 3
    assert first.created
    assert other.created
    assert other.trace.block_size == 256
    assert named.created


def test_options_that_a_format_does_not_heed_make_no_other_trace(tmp_path: Path) -> None:
    """A seed and arrivals of sessions say nothing of requests that have a clock."""
    path = write(tmp_path / "a.csv", ["arrived_at,num_prefill_tokens,num_decode_tokens", "0,5,1"])
    session = {"id": "s", "requests": [{"t": 0.0, "in": 64, "out": 1, "hash_ids": [1]}]}
    agents = write(tmp_path / "b.jsonl", [json.dumps(session)])
    drawn = ReadOptions(session_arrivals=1.0, seed=1)
    with open_store(MEMORY) as store:
        for read in (ReadOptions(), ReadOptions(seed=1), drawn):
            ingest(store, path, IngestOptions(read=read))
        assert [trace.name for trace in traces.all_traces(store)] == ["a"]
        for read in (ReadOptions(), ReadOptions(seed=1), drawn, replace(drawn, seed=2)):
            ingest(store, agents, IngestOptions(read=read))
        assert {trace.name for trace in traces.all_traces(store)} == {"a", "b", "b-2", "b-3"}


def test_paths_are_told_before_they_are_stored(tmp_path: Path) -> None:
    """Those of a new trace, and the same that the store gives later; of no other trace any."""
    told: list[tuple[PromptPaths, int]] = []
    path = write(tmp_path / "a.jsonl", lines(20))
    csv = write(tmp_path / "b.csv", ["arrived_at,num_prefill_tokens,num_decode_tokens", "0,5,1"])
    with open_store(MEMORY) as store:

        def listen(built: Built) -> None:
            told.append((built.paths(), len(traces.all_traces(store))))

        trace = ingest(store, path, foresee=listen).trace
        ingest(store, path, foresee=listen)
        ingest(store, csv, foresee=listen)
        stored = load_prompts(store, trace)
    [(paths, traces_by_then)] = told
    assert traces_by_then == 0
    for name in PromptPaths.__struct_fields__:
        was, later = getattr(paths, name), getattr(stored, name)
        assert np.array_equal(was, later)
        assert np.asarray(was).dtype == np.asarray(later).dtype


def test_only_the_first_bad_lines_are_kept(tmp_path: Path) -> None:
    """Ten thousand with their place and reason; all of them are counted."""
    path = write(tmp_path / "a.jsonl", ["{}"] * 10_002 + lines(1))
    with open_store(MEMORY) as store:
        found = ingest(store, path, IngestOptions(format="mooncake", max_bad=1.0))
        kept = traces.bad_lines(store, found.trace)
    assert found.trace.bad_lines == 10_002
    assert [place for place, _ in kept] == [f"{path}:{line}" for line in range(1, 10_001)]


def test_without_options_the_stored_reading_is_taken(tmp_path: Path) -> None:
    """The plain reading if the store has it, otherwise the last one worked on; none is added."""
    path = write(tmp_path / "a.jsonl", lines(5))
    with open_store(MEMORY) as store:
        halves = ingest(store, path, IngestOptions(read=ReadOptions(block_size=256))).trace
        thirds = ingest(store, path, IngestOptions(read=ReadOptions(block_size=170))).trace
        assert ingest(store, path).trace == thirds
        traces.mark_used(store, halves)
        assert ingest(store, path).trace == halves
        plain = ingest(store, path, IngestOptions(format="mooncake"))
        assert plain.created
        traces.mark_used(store, halves)
        assert ingest(store, path).trace == plain.trace
        assert len(traces.all_traces(store)) == 3


def test_a_stored_reading_needs_no_detection(tmp_path: Path) -> None:
    """What only --format could read is known again without it."""
    path = write(tmp_path / "a.jsonl", ["", *lines(3)])
    Path(path).write_bytes(b" " * 70_000 + Path(path).read_bytes())
    with open_store(MEMORY) as store:
        with pytest.raises(InputError):
            ingest(store, path)
        first = ingest(store, path, IngestOptions(format="mooncake"))
        again = ingest(store, path)
    assert (first.created, again.created) == (True, False)


def test_a_few_bad_lines_are_kept_for_show(tmp_path: Path) -> None:
    """Up to the tolerated share the rest is stored, and each bad line with place and reason."""
    told = lines(200)
    told[7] = '{"timestamp": 7'
    told[9] = ""
    told[150] = '{"timestamp": 1, "input_length": 0, "output_length": 1}'
    path = write(tmp_path / "a.jsonl", told)
    with open_store(MEMORY) as store:
        found = ingest(store, path, IngestOptions(max_bad=0.0101))
        kept = traces.bad_lines(store, found.trace)
    assert (found.trace.requests, found.trace.lines, found.trace.bad_lines) == (197, 199, 2)
    assert [place for place, _ in kept] == [f"{path}:8", f"{path}:151"]
    assert kept[1][1] == "input tokens must be 1 or more: 0"
    assert found.rejects.reasons["input tokens must be 1 or more"] == 1


def test_too_many_bad_lines_store_nothing(tmp_path: Path) -> None:
    """Above the tolerated share the error names the first bad line, and the store is as it was."""
    told = lines(100)
    told[3] = told[5] = "{}"
    path = write(tmp_path / "a.jsonl", told)
    with open_store(MEMORY) as store:
        with pytest.raises(InputError) as refused:
            ingest(store, path)
        assert not any(rows(store).values())
        assert ingest(store, path, IngestOptions(max_bad=0.02)).created
    assert f"2 of 100 lines cannot be used, more than 1% of them; the first: {path}:4:" in str(
        refused.value
    )
    assert refused.value.exit_code == ExitCode.INPUT


def test_sessions_without_requests_are_no_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ['{"id": "session", "requests": []}'])
    with open_store(MEMORY) as store, pytest.raises(InputError, match="the trace holds no request"):
        ingest(store, path)


BAILIAN = '{"chat_id": %d, "timestamp": %d, "input_length": 40, "output_length": 1}'


@pytest.mark.parametrize(
    ("content", "what", "remedy"),
    [
        (
            ['{"timestamp": "now", "input_length": 9, "output_length": 1}'] * 8,
            "none of its 8 lines can be read as mooncake, the nearest format",
            "convert it: each mooncake record has timestamp, input_length, output_length, hash_ids",
        ),
        (
            ['{"model": "m", "messages": []}'] * 8,
            "none of its 8 lines can be read as mooncake",
            "record one with `kvscope record`",
        ),
        (
            ['{"id": 1, "conversations": []}'] * 8,
            "knows: JSON lines with conversations, id",
            "record one with `kvscope record`",
        ),
        (
            ['{"time_stamp": 1, "inputLength": 9, "x": 1}'] * 8,
            "knows: JSON lines with inputLength, time_stamp, x",
            "nearest is mooncake: it also needs timestamp, input_length, output_length, hash_ids",
        ),
        (['{"a": 1.5}'] * 8, "knows: JSON lines with a", "see `kvscope formats`"),
        (['[{"a": 1}]'], "knows: one JSON array", "`jq -c '.[]'`"),
        (
            ["time,tokens", "1,2"],
            "knows: text that begins with time, tokens;",
            "see `kvscope formats`",
        ),
        (
            ["Write to alice@example.com, or", "call her"],
            "knows: text that begins with text of 26 characters, or;",
            "see `kvscope formats`",
        ),
        (
            ['{"alice@example.com": 1}'] * 8,
            "knows: JSON lines with text of 17 characters;",
            "see `kvscope formats`",
        ),
        (
            ["timestamp,ContextToken,GeneratedToken", "1,2,3"],
            "knows: text that begins with",
            "the nearest is lengths: it also needs prompt_tokens, completion_tokens",
        ),
    ],
)
def test_a_file_of_another_kind_is_described_once(
    tmp_path: Path, content: list[str], what: str, remedy: str
) -> None:
    """What it looks like, the nearest format and the remedy; no format is forced in vain."""
    path = write(tmp_path / "a.jsonl", content)
    with open_store(MEMORY) as store, pytest.raises(InputError) as refused:
        ingest(store, path)
    message = str(refused.value)
    assert what in message
    assert message.endswith(remedy)
    assert "--format" not in message
    assert message.count("Expected") <= 1


def test_a_trace_that_changes_its_format_is_described(tmp_path: Path) -> None:
    """The first line of the other format is named, and no block size is doubted."""
    hashed = '{"timestamp": %d, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}'
    mooncake = [hashed % at for at in range(40)]
    bailian = [BAILIAN[:-1] % (at, at) + ', "hash_ids": [1, 2, 3]}' for at in range(30)]
    for whole, remedy in (
        (mooncake + bailian, "from line 41 on it is bailian, elsewhere mooncake: split it"),
        (bailian * 2 + mooncake, "from line 61 on it is mooncake, elsewhere bailian: split it"),
        (mooncake[:30] + bailian, "from line 1 on it is mooncake, elsewhere bailian: split it"),
    ):
        path = write(tmp_path / "a.jsonl", whole)
        with open_store(MEMORY) as store, pytest.raises(InputError) as refused:
            ingest(store, path)
        assert str(refused.value).endswith(remedy)
        assert "block-size" not in str(refused.value)


def test_a_wrong_block_size_is_doubted(tmp_path: Path) -> None:
    """Hash ids that do not fit from the first line on ask for the block size."""
    row = '{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1, 2, 3]}'
    path = write(tmp_path / "a.jsonl", [row] * 5)
    with open_store(MEMORY) as store, pytest.raises(InputError, match="own --block-size"):
        ingest(store, path)


def test_a_wrongly_forced_format_is_withdrawn(tmp_path: Path) -> None:
    """A file that another format recognizes is named as such."""
    path = write(tmp_path / "a.jsonl", lines(5))
    with open_store(MEMORY) as store, pytest.raises(InputError, match="leave out --format"):
        ingest(store, path, IngestOptions(format="weka"))


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    """A file that is not there, a format that kvscope does not know."""
    with open_store(MEMORY) as store:
        with pytest.raises(InputError, match="no such file"):
            ingest(store, str(tmp_path / "nothing.jsonl"))
        with pytest.raises(UsageError, match="unknown trace format 'xml'"):
            ingest(store, write(tmp_path / "a.jsonl", lines(1)), IngestOptions(format="xml"))


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    """`advance` is told of as many bytes as the file has."""
    path = write(tmp_path / "a.jsonl", lines(3000))
    told: list[int] = []
    with open_store(MEMORY) as store:
        ingest(store, path, advance=told.append)
    assert sum(told) == Path(path).stat().st_size


def test_removing_a_trace_leaves_the_others(tmp_path: Path) -> None:
    """Nothing of the removed trace stays, all of the other does."""
    with open_store(MEMORY) as store:
        kept = ingest(store, write(tmp_path / "a.jsonl", lines(10))).trace
        before = rows(store)
        told = [*lines(300), "{}"]
        gone = ingest(store, write(tmp_path / "b.jsonl", told)).trace
        assert rows(store)["bad_lines"] == 1
        traces.remove(store, gone)
        assert rows(store) == before
        assert traces.all_traces(store) == [kept]


# Runs an ingest and stops dead where the test wants to kill it. Nothing in kvscope knows of it.
_VICTIM = """
    import sys, time
    from kvscope.ingest import pipeline
    from kvscope.store.db import Store, open_store

    db, path, moment = sys.argv[1:]

    def stop(at):
        if at == moment:
            print("here", flush=True)
            time.sleep(600)

    inner = Store.append
    def append(self, name, frame, /, **parameters):
        inner(self, name, frame, **parameters)
        stop(name.removeprefix("ingest/add_"))
    Store.append = append

    with open_store(db) as store:
        stop("opened")
        pipeline.ingest(store, path, advance=lambda read: stop("reading"))
        stop("done")
"""


@pytest.mark.parametrize("moment", ["opened", "reading", "requests", "blocks", "reuses", "done"])
def test_killed_at_any_moment(tmp_path: Path, moment: str) -> None:
    """SIGKILL leaves the store as it was, or, once committed, with the whole trace; and usable."""
    db = str(tmp_path / "store.duckdb")
    small = write(tmp_path / "small.jsonl", lines(10))
    large = write(tmp_path / "large.jsonl", lines(1500, blocks=200))
    with open_store(db) as store:
        ingest(store, small)
        before = rows(store)
    command = [sys.executable, "-c", textwrap.dedent(_VICTIM), db, large, moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "here\n"
        victim.kill()
        assert victim.wait() == -signal.SIGKILL
    with open_store(db) as store:
        found = ingest(store, large)
        assert found.created == (moment != "done")
        assert [trace.name for trace in traces.all_traces(store)] == ["large", "small"]
        after = rows(store)
        traces.remove(store, found.trace)
        assert rows(store) == before
    assert after["each_block"] == before["each_block"] + 1500 * 199 + 1
    assert after["requests"] == before["requests"] + 1500


def test_the_first_of_two_defects_is_told(tmp_path: Path) -> None:
    """A bad line ends a strict ingest, though what follows it cannot even be read."""
    told = lines(5000)
    told[100] = "{}"
    packed = gzip.compress("".join(f"{line}\n" for line in told).encode(), mtime=0)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed[:-20])
    with open_store(MEMORY) as store:
        with pytest.raises(InputError, match=r"a\.jsonl\.gz:101: "):
            ingest(store, str(path), IngestOptions(strict=True))
        assert not any(rows(store).values())


def test_an_interrupt_while_reading_stores_nothing(tmp_path: Path) -> None:
    """It comes out as itself, and the store can be used as before."""
    path = write(tmp_path / "a.jsonl", lines(20_000))
    told: list[int] = []

    def interrupted(read: int) -> None:
        told.append(read)
        if len(told) == 2:
            raise KeyboardInterrupt

    with open_store(MEMORY) as store:
        with pytest.raises(KeyboardInterrupt):
            ingest(store, path, advance=interrupted)
        assert not any(rows(store).values())
        assert ingest(store, path).trace.requests == 20_000


def test_an_interrupt_while_kernels_run_is_not_kept_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conversations and reuse are found in another thread: Ctrl-C ends the wait for them."""
    path = write(tmp_path / "a.jsonl", lines(20))
    going_on = threading.Event()

    def endless(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        going_on.wait(60)

    monkeypatch.setattr("kvscope.ingest.pipeline.build", endless)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background
    try:  # ignore it, and so would the tests
        with open_store(MEMORY) as store:
            with pytest.raises(KeyboardInterrupt):
                ingest(store, path)
            assert not any(rows(store).values())
    finally:
        signal.signal(signal.SIGINT, before)
        going_on.set()


def test_files_that_overlap_in_time_are_named(tmp_path: Path) -> None:
    """And requests that are in both."""
    lines = [
        f'{{"timestamp":{at},"input_length":40,"output_length":1,"hash_ids":[{at}]}}\n'
        for at in range(6)
    ]
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path, part in zip(paths, (lines[:3], lines[1:5], lines[5:]), strict=True):
        path.write_text("".join(part))
    with open_store(MEMORY) as store:
        (note,) = [x for x in ingest(store, str(tmp_path)).trace.notes if "overlap" in x]
        assert note == (
            f"2 of 3 files overlap in time, as {paths[0]} and {paths[1]} do: merged in order of"
            " time; 2 requests equal another one in time, lengths and blocks: logged twice?"
        )
        paths[1].write_text("".join(lines[3:5]))
        assert not [x for x in ingest(store, str(tmp_path)).trace.notes if "overlap" in x]


def test_a_folder_is_one_trace_in_time_order(tmp_path: Path) -> None:
    """Files, compressed or not, one without its last line feed, are one trace, twice the same."""
    whole = lines(9)
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "log.1").write_bytes(gzip.compress("\n".join(whole[6:]).encode()))
    (folder / "log.2").write_text("\n".join(whole[3:6]) + "\n")
    (folder / "log.3").write_text("\n".join(whole[:3]))
    (folder / ".hidden").write_text("no trace")
    with open_store(MEMORY) as store:
        joined = ingest(store, str(folder))
        assert ingest(store, str(folder)).created is False
        alone = ingest(store, write(tmp_path / "whole.jsonl", whole)).trace
        assert joined.trace.requests == alone.requests == 9
        assert joined.trace.name == "logs"
        assert ingest(store, str(folder / "log.?")).trace == joined.trace
        assert joined.trace.distinct_blocks == alone.distinct_blocks
        arrivals = [load_prompts(store, trace).arrival_s for trace in (joined.trace, alone)]
        assert np.array_equal(*arrivals)
        assert load_prompts(store, joined.trace).input_tokens.sum() == alone.input_tokens


def test_a_bad_line_names_its_own_file(tmp_path: Path) -> None:
    """In a folder lines are numbered file by file, compressed ones and those before a cut too."""
    folder = tmp_path / "logs"
    folder.mkdir()
    good, bad = "\n".join(lines(3)), '{"timestamp": 1, "input_length": 0, "output_length": 1}'
    (folder / "a.gz").write_bytes(gzip.compress(f"{good}\n{bad}".encode()))
    (folder / "b").write_text("")
    (folder / "c").write_text(f"{good}\n{bad}\n{bad}\n")
    (folder / "d").write_text(f"{bad}\n{good}\n{lines(1)[0][:-9]}")
    places = [f"{folder}/a.gz:4", f"{folder}/c:4", f"{folder}/c:5", f"{folder}/d:1"]
    with open_store(MEMORY) as store:
        found = ingest(store, str(folder), IngestOptions(max_bad=0.5))
        assert [place for place, _ in traces.bad_lines(store, found.trace)] == places
        assert found.rejects.in_words()[1].startswith(f"{folder}/a.gz:4: input tokens must be")
        with pytest.raises(InputError, match=f"^{re.escape(str(folder))}/a.gz:4: "):
            ingest(store, str(folder), IngestOptions(strict=True, read=ReadOptions(block_size=9)))
    assert "line 5 of " + f"{folder}/d is left out" in " ".join(found.trace.notes)


def test_a_damaged_file_of_a_folder_is_named(tmp_path: Path) -> None:
    """The file whose compressed data is damaged, not the folder."""
    (tmp_path / "a").write_text("\n".join(lines(3)))
    data = bytearray(gzip.compress("\n".join(lines(50)).encode()))
    data[30:60] = bytes(30)
    (tmp_path / "b.gz").write_bytes(data)
    with open_store(MEMORY) as store, pytest.raises(InputError, match=r"^.*/b\.gz: .* damaged"):
        ingest(store, str(tmp_path))
