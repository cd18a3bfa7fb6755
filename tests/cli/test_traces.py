"""`kvscope ingest`, `traces` and `export`: what they print, what they say, how they end."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import kvscope
from kvscope.app.traces import TraceSource
from kvscope.cli.app import run
from kvscope.cli.terminal import Terminal
from kvscope.core.errors import ExitCode, InputError, KvscopeError
from kvscope.store import traces
from kvscope.store.db import MEMORY, open_store
from kvscope.store.failures import Waiting
from tests.cli.shell import Streams, streams_of


def line(at: int) -> str:
    """One Mooncake line of two blocks; all share the first."""
    told = {"timestamp": at * 1000, "input_length": 1024, "output_length": 5, "hash_ids": [1, at]}
    return json.dumps(told)


def trace_file(path: Path, lines: list[str] | None = None) -> str:
    """Return a trace of ten lines, or of these."""
    path.write_text("".join(f"{one}\n" for one in lines or map(line, range(10))))
    return str(path)


@pytest.fixture
def db(tmp_path: Path) -> str:
    """Return a store that does not exist yet."""
    return str(tmp_path / "store.duckdb")


def test_ingest_says_what_is_stored(tmp_path: Path, db: str, capsys: Streams) -> None:
    """One line of data a trace; what was inferred goes to stderr."""
    path = trace_file(tmp_path / "chat.jsonl")
    out, err = streams_of(capsys, "ingest", path, "--db", db)
    assert out == (
        "chat: mooncake, 10 requests over 9 s, 20 accesses of 11 blocks of 512 tokens,"
        " lineage inferred\n"
    )
    assert f"note: {path}: conversations are inferred from shared prefixes\n" in err
    again = streams_of(capsys, "ingest", path, "--db", db)
    assert again.out == out
    known = f"{path}: already in the store as 'chat', read as mooncake in blocks of 512 tokens"
    assert again.err == f"note: {known}\n"


def test_a_path_is_taken_as_it_is_stored(tmp_path: Path, db: str, capsys: Streams) -> None:
    """Whoever names no reading options gets the trace as it was read before, and is told how."""
    path = trace_file(tmp_path / "a.jsonl")
    streams_of(capsys, "ingest", path, "--block-size", "600", "--db", db)
    for words in (["analyze", path], ["ingest", path], ["export", path, "--to", "mooncake"]):
        output = ["-o", str(tmp_path / "out.jsonl")] if words[0] == "export" else ["--json"]
        said = streams_of(capsys, *words, *output, "--db", db).err
        assert f"{path}: already in the store as 'a', read as mooncake in blocks of 600" in said
    assert run(["ingest", path, "--block-size", "300", "--db", db]) == ExitCode.DONE
    assert capsys.readouterr().out.startswith("a-2: ")
    assert run(["analyze", path, "--block-size", "600", "--json", "--db", db]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["trace"]["name"] == "a"


def test_ingest_as_json(tmp_path: Path, db: str, capsys: Streams) -> None:
    """One document for all paths; its `trace` has the keys that scripts depend on."""
    first, second = trace_file(tmp_path / "a.jsonl"), trace_file(tmp_path / "b.jsonl", [line(7)])
    document = json.loads(streams_of(capsys, "ingest", first, second, "--db", db, "--json").out)
    assert (document["schema"], document["command"]) == (1, "ingest")
    assert document["trace"]["name"] == "b"
    assert [one["name"] for one in document["ingested"]] == ["a", "b"]
    assert [one["created"] for one in document["ingested"]] == [True, True]
    assert document["ingested"][0]["requests"] == 10
    assert "trace_id" not in document["ingested"][0]


def test_bad_lines_are_reported_and_kept(tmp_path: Path, db: str, capsys: Streams) -> None:
    """Each kind of reason once, with its first line and its count; later again from the store."""
    bad = '{"timestamp": 1, "input_length": 0, "output_length": 1}'
    path = trace_file(tmp_path / "a.jsonl", [line(1), *[bad] * 7, "{", line(2)])
    refused = streams_of(capsys, "ingest", path, "--db", db, code=ExitCode.INPUT)
    assert refused.out == ""
    *notes, error = refused.err.splitlines()
    assert error.startswith(f"error: {path}: 8 of 10 lines cannot be used, more than 1%")
    assert f"{path}:2: input tokens must be 1 or more: 0" in error
    reason = "input tokens must be 1 or more: 0"
    assert notes[0] == f"note: {path}: 8 of 10 lines cannot be used:"
    assert notes[1] == f"note: {path}:2: {reason} (and 6 more like it)"
    assert notes[2].startswith(f"note: {path}:9: ")
    assert run(["ingest", path, "--db", db, "--max-bad", "90%"]) == ExitCode.DONE
    assert capsys.readouterr().err.splitlines()[:3] == notes
    listed = streams_of(capsys, "traces", "bad-lines", "a", "--db", db).out.splitlines()
    assert len(listed) == 8
    assert listed[0] == f"{path}:2: {reason}"
    assert run(["ingest", path, "--db", db, "--strict", "--block-size", "600"]) == ExitCode.INPUT
    assert capsys.readouterr().err == f"error: {path}:2: {reason}\n"


def test_a_stored_trace_is_not_read_again(tmp_path: Path, db: str, capsys: Streams) -> None:
    """Options on how to read a trace that is there are refused, not ignored."""
    streams_of(capsys, "ingest", trace_file(tmp_path / "a.jsonl"), "--db", db)
    for option in (["--block-size", "64"], ["--format", "weka"], ["--strict"], ["--name", "b"]):
        for named in (["a"], []):
            assert run(["analyze", *named, *option, "--db", db]) == ExitCode.USAGE
            assert capsys.readouterr().err == (
                f"error: {option[0]}: 'a' is a stored trace, read already;"
                " leave it out, or name the trace's file\n"
            )
    assert run(["analyze", "a", "--strict", "--max-bad", "2%", "--db", db]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("error: --strict, --max-bad: 'a' is")


def test_strict_holds_for_what_is_known(tmp_path: Path, db: str, capsys: Streams) -> None:
    """A trace that is stored without its bad lines is refused as it would be when read."""
    path = trace_file(tmp_path / "a.jsonl", [line(1), "{", line(2)])
    streams_of(capsys, "ingest", path, "--db", db, "--max-bad", "50%")
    assert run(["ingest", path, "--db", db]) == ExitCode.DONE
    assert capsys.readouterr().err.endswith("blocks of 512 tokens, 1 of 3 lines left out\n")
    for command in ("ingest", "analyze"):
        out, err = streams_of(capsys, command, path, "--db", db, "--strict", code=ExitCode.INPUT)
        assert out == ""
        assert err.startswith(f"error: {path}:2: ")


def test_traces_lists_the_last_used_first(tmp_path: Path, db: str, capsys: Streams) -> None:
    """A table for people, a document for programs; removing takes one away."""
    for name in ("first", "second"):
        path = trace_file(tmp_path / f"{name}.jsonl", [line(len(name))])
        assert run(["ingest", path, "--db", db]) == ExitCode.DONE
    capsys.readouterr()
    table = streams_of(capsys, "traces", "--db", db).out
    assert table.index("second") < table.index("first")
    assert all(word in table for word in ("mooncake", "requests", "bad lines"))
    assert run(["traces", "--db", db, "remove", "second"]) == ExitCode.DONE
    assert capsys.readouterr().err == "note: removed 'second'\n"
    document = json.loads(streams_of(capsys, "traces", "--db", db, "--json").out)
    assert document["trace"] is None
    assert [one["name"] for one in document["traces"]] == ["first"]
    sound = streams_of(capsys, "traces", "bad-lines", "first", "--db", db)
    assert (sound.out, sound.err) == ("", "note: 'first' has no bad lines\n")
    assert run(["traces", "remove", "fist", "--db", db]) == ExitCode.INPUT
    assert "did you mean 'first'?" in capsys.readouterr().err


def test_nothing_to_work_on_creates_no_store(tmp_path: Path, db: str, capsys: Streams) -> None:
    """Whatever a command misses, it leaves no file behind."""
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    out = str(tmp_path / "out.jsonl")
    for words in (
        ["analyze"],
        ["analyze", "nothing.jsonl"],
        ["analyze", str(tmp_path)],
        ["analyze", str(empty)],
        ["ingest", str(empty)],
        ["ingest", "nothing.jsonl"],
        ["export", "--to", "mooncake", "-o", out],
        ["export", "nothing", "--to", "mooncake", "-o", out],
    ):
        assert streams_of(capsys, *words, "--db", db, code=ExitCode.INPUT).err.startswith("error: ")
        assert list(tmp_path.iterdir()) == [empty]


def test_export_and_back(tmp_path: Path, db: str, capsys: Streams) -> None:
    """Text goes to stdout alone, a file by its ending; what comes back is the same trace."""
    path = trace_file(tmp_path / "a.jsonl")
    target = tmp_path / "out.jsonl.gz"
    told = ["export", path, "--db", db, "--to", "mooncake", "-o"]
    streams_of(capsys, *told, str(target))
    piped = subprocess.run(
        [sys.executable, "-m", "kvscope", *told, "-"], capture_output=True, check=True
    )
    assert piped.stdout == gzip.decompress(target.read_bytes())
    assert json.loads(piped.stdout.splitlines()[3]) == json.loads(line(3)) | {"hash_ids": [1, 5]}


def test_a_source_is_a_path_a_name_or_nothing(tmp_path: Path, capsys: Streams) -> None:
    """Each becomes the trace last worked on, which is what None gives; stderr says which."""
    first = trace_file(tmp_path / "first.jsonl")
    second = trace_file(tmp_path / "second.jsonl", [line(3)])
    with open_store(MEMORY) as store:
        assert TraceSource.of(first).load(store, Terminal()).name == "first"
        assert TraceSource.of(second).load(store, Terminal()).name == "second"
        capsys.readouterr()
        assert TraceSource.of(None).load(store, Terminal()).name == "second"
        assert capsys.readouterr().err == "note: working on 'second', the trace last worked on\n"
        assert TraceSource.of("first").load(store, Terminal()).name == "first"
        assert TraceSource.of(None).load(store, Terminal()).name == "first"
        assert TraceSource.of(second).load(store, Terminal()).name == "second"
        assert TraceSource.of(None).load(store, Terminal()).name == "second"
        with pytest.raises(InputError, match=r"secnd: neither a file nor a stored .* 'second'\?"):
            TraceSource.of("secnd").load(store, Terminal())
        with pytest.raises(InputError, match=r"did you mean '.*first\.jsonl'\?"):
            TraceSource.of(str(tmp_path / "first.josnl")).load(store, Terminal())
        with pytest.raises(InputError, match="give a trace file, or see `kvscope traces`"):
            TraceSource.of(str(tmp_path / "nowhere" / "else")).load(store, Terminal())
        (empty := tmp_path / "empty").mkdir()
        with pytest.raises(InputError, match="the trace is empty"):
            TraceSource.of(str(empty)).load(store, Terminal())


def test_a_name_of_any_bytes(tmp_path: Path, db: str) -> None:
    """A file whose name is no text is stored all the same, under a name that is."""
    path = os.fsencode(tmp_path) + b"/\xffx.jsonl"
    Path(os.fsdecode(path)).write_bytes(Path(trace_file(tmp_path / "a.jsonl")).read_bytes())
    told = subprocess.run(
        [sys.executable, "-m", "kvscope", "ingest", path, "--db", db],
        capture_output=True,
        check=True,
    )
    assert told.stdout.startswith(b"?x: mooncake, 10 requests")


def test_several_paths_are_one_trace(tmp_path: Path, db: str, capsys: Streams) -> None:
    """Of a command, and of ingest under one name; each file once, in the order of time."""
    (tmp_path / "rest").mkdir()
    paths = [tmp_path / "late day.jsonl", tmp_path / "rest" / "early.jsonl.gz"]
    lines = Path(trace_file(tmp_path / "whole")).read_bytes().splitlines(keepends=True)
    paths[0].write_bytes(b"".join(lines[4:]))
    paths[1].write_bytes(gzip.compress(b"".join(lines[:4])))
    texts = [str(paths[0]), str(tmp_path / "rest"), str(paths[1])]
    assert run(["ingest", *texts, "--name", "x", "--db", db]) == 0
    assert capsys.readouterr().out.startswith("x: mooncake, 10 requests")
    streams = streams_of(capsys, "export", *texts, "--to", "mooncake", "-o", "-", "--db", db)
    assert "already in the store as 'x'" in streams.err
    assert [json.loads(line)["timestamp"] for line in streams.out.splitlines()] == [
        json.loads(line)["timestamp"] for line in lines
    ]
    with kvscope.open_trace([paths[0], str(paths[1])]) as trace:
        assert (trace.facts.name, trace.facts.requests) == ("late day+1", 10)
    assert run(["ingest", *texts, "--db", db]) == 0  # a trace each
    assert run(["analyze", texts[0], "x", "--db", db]) == ExitCode.INPUT
    errors = streams_of(capsys, "analyze", texts[0], "none", "--db", db, code=ExitCode.INPUT).err
    assert "x: a stored trace is no file among others" in errors
    assert "none: neither a file nor a stored trace" in errors


def test_stdin_is_a_trace(tmp_path: Path, db: str) -> None:
    """`-` reads standard input; without a file's name it is called stdin."""
    text = Path(trace_file(tmp_path / "a.jsonl")).read_bytes()
    told = subprocess.run(
        [sys.executable, "-m", "kvscope", "ingest", "-", "--db", db],
        input=text,
        capture_output=True,
        check=True,
    )
    assert told.stdout.startswith(b"stdin: mooncake, 10 requests")


TRACE = str(Path(__file__).parents[1] / "written_before" / "trace.jsonl")
CAPACITY = ("--capacity-blocks", "9")
# What a command computes with once it has read the trace, and the command.
COMPUTES = {
    "kvscope.usecases.analyze:_layouts": ("analyze", "trace"),
    "kvscope.replay.caching:caching": ("analyze", "trace"),
    "kvscope.characterize.summary:_of_history": ("analyze", "trace"),
    "kvscope.characterize.spatial:decile_histogram": ("analyze", "trace"),
    "kvscope.reuse_models.fit:fit_to": ("fit", "trace"),
    "kvscope.app.simulate:sweep": ("simulate", "trace", *CAPACITY),
    "kvscope.usecases.tune.recommend:tune": (
        *("tune", "trace", "--slo", "1s", "--output", "-"),
        *CAPACITY,
    ),
    "kvscope.usecases.fleet:fleet": ("fleet", "trace", "--slo", "1s", *CAPACITY),
}


class Computing(KvscopeError):
    """The command computes: that is all there is to see."""


@pytest.mark.parametrize("place", COMPUTES)
def test_the_store_is_closed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams, place: str
) -> None:
    """While it computes, the store can be opened for writing, and lists its traces.

    What it computes in a second thread may begin before the command has read everything.
    """
    path = str(tmp_path / "store.duckdb")
    assert run(["ingest", TRACE, "--db", path]) == ExitCode.DONE

    def compute(*_: Any, **__: Any) -> Any:
        with open_store(path, waiting=Waiting(patience_s=5.0)) as store:
            assert [trace.name for trace in traces.all_traces(store)] == ["trace"]
        raise Computing("reached")

    module, _, name = place.partition(":")
    monkeypatch.setattr(import_module(module), name, compute)
    assert run([*COMPUTES[place], "--db", path]) == ExitCode.FAILED
    assert capsys.readouterr().err.strip().endswith("error: reached")
