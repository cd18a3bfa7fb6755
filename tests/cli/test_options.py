"""Options that commands share: parsed, refused, and their defaults."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import typer

import kvscope
from kvscope.app import values
from kvscope.app.options import AS_STORED, Hbm, Reading
from kvscope.cli import output
from kvscope.cli.app import run
from kvscope.cli.options import DEFAULT_DB, Json, parsed_by, typed
from kvscope.core.errors import ExitCode, UsageError
from kvscope.core.files import TOML_MARK
from tests.cli.replayed import write_trace
from tests.cli.shell import Streams, show, streams_of


def test_refused_values_name_their_option(capsys: Streams) -> None:
    """A value that does not parse is shown with its option and what would be right."""
    for option, value, what in [
        ("--hbm", "16Gb", "'16Gb' is in bits; write 16GB if you mean bytes"),
        ("--kv-dtype", "fp7", "'fp7' is not one of 'fp32', 'fp16', 'bf16', 'fp8', 'int8'"),
    ]:
        assert run(["show", option, value], [("show", show)]) == ExitCode.USAGE
        line = f"error: invalid value for '{option}': {what}; see `kvscope show --help`\n"
        assert capsys.readouterr() == ("", line)


def test_shared_options_arrive_parsed(capsys: Streams) -> None:
    """Commands get bytes and names, not texts to parse; nothing given is None."""
    words = ["show", "-", "--db", ":memory:", "--hbm", "80GiB", "--model", "llama3-8b"]
    assert run([*words, "--kv-dtype", "fp8", "--json"], [("show", show)]) == ExitCode.DONE
    assert run(["show"], [("show", show)]) == ExitCode.DONE
    first, second = capsys.readouterr().out.splitlines()
    assert first == repr(("-", ":memory:", 80 * 2**30, "llama3-8b", "fp8", True))
    assert second == repr((None, DEFAULT_DB, None, None, None, False))


def test_options_of_a_class_stand_where_the_command_wants_them(capsys: Streams) -> None:
    """A command that takes a `Reading` gets all of its options, parsed, and lists them in place."""

    def read(*, first: Json = False, reading: Reading, last: Hbm = None) -> None:
        """Read."""
        output.emit(repr((first, reading, last)))

    given = ["--block-size", "64", "--session-arrivals", "poisson:30/min", "--max-bad", "5%"]
    assert run(["read", *given], [("read", read)]) == ExitCode.DONE
    assert run(["read"], [("read", read)]) == ExitCode.DONE
    parsed = Reading(block_size=64, session_arrivals=0.5, max_bad=0.05)
    assert capsys.readouterr().out.splitlines() == [
        repr((False, parsed, None)),
        repr((False, AS_STORED, None)),
    ]
    assert list(inspect.signature(typed(read)).parameters) == [
        "first",
        *Reading.__struct_fields__,
        "last",
        "debug",
    ]


def test_refusals_become_typers_own() -> None:
    """So the option is named; a default, which is parsed already, passes."""
    parse = parsed_by(values.whole(0))
    assert parse(3) == 3
    with pytest.raises(typer.BadParameter, match="'x' is not a whole number"):
        parse("x")


def test_the_default_store_is_the_stores() -> None:
    """The command line repeats the store's default, which costs too much to import."""
    from kvscope.store.db import DEFAULT_PATH

    assert DEFAULT_DB == DEFAULT_PATH


def test_what_is_read_is_not_replaced(tmp_path: Path, capsys: Streams) -> None:
    """Neither a trace nor the store, whatever path leads to them, by a pattern or a folder too."""
    folder = tmp_path / "traces"
    folder.mkdir()
    trace = write_trace(folder)
    before, store = trace.read_bytes(), tmp_path / "k.duckdb"
    symbolic, hard, linked = (tmp_path / f"{name}.html" for name in ("soft", "hard", "store"))
    symbolic.symlink_to(trace)
    hard.hardlink_to(trace)
    assert run(["ingest", str(trace), "--db", str(store)]) == ExitCode.DONE
    linked.hardlink_to(store)
    for source, page in (
        (trace, symbolic),
        (folder, hard),
        (folder / "*.jsonl", symbolic),
        (trace, linked),
    ):
        code = run(["analyze", str(source), "--db", str(store), "--html", str(page)])
        assert code == ExitCode.USAGE, (source, page)
        assert "the file is read, too" in capsys.readouterr().err
    assert trace.read_bytes() == before
    page = str(tmp_path / "kept.html")
    for _ in range(2):  # a report is replaced by a later one
        assert run(["analyze", str(trace), "--db", str(store), "--html", page]) == ExitCode.DONE


def test_a_store_and_a_dataset_are_read_before_they_are_there(
    tmp_path: Path, capsys: Streams
) -> None:
    """A new store, its log of changes, whatever lies in a dataset: by force neither; in Python."""
    trace, store, folder = write_trace(tmp_path), tmp_path / "new.duckdb", tmp_path / "set"
    assert run(["ingest", str(trace), "--into", str(folder), "--workers", "1"]) == ExitCode.DONE
    inside = folder / "requests" / "parent.npy"
    analyze = ["analyze", str(trace), "--db", str(store), "--force", "--html"]
    for page in (store, f"{store}.wal"):
        assert run([*analyze, str(page)]) == ExitCode.USAGE
        assert "the file is read, too" in capsys.readouterr().err
    assert not store.exists()
    before = inside.read_bytes()
    words = ["simulate", str(folder), "--policy", "lru", "--capacity-blocks", "9", "--force"]
    for page in (inside, folder / "new.html"):
        assert run([*words, "--html", str(page)]) == ExitCode.USAGE
    assert inside.read_bytes() == before
    with pytest.raises(UsageError, match="the file is read, too"):
        kvscope.simulate_fleet(trace, slo="1s", capacity_blocks=9, perfetto=trace, force=True)


def test_what_is_read_without_being_named_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """The deployment here, the files that settings name, those beside a tokenizer, a default."""
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path, "trace")
    Path("log.jsonl").write_text('{"prompt": [1, 2]}\n')
    for number, name in enumerate(("kvscope.toml", "other.toml", "recommendation.toml")):
        Path(name).write_text(f'{TOML_MARK}1\nschema = 1\nengine_log = "engine-{number}.log"\n')
        Path(f"engine-{number}.log").write_text("num_gpu_blocks is: 90\n")
    beside = Path("model") / "templates" / "tool_use.jinja"
    beside.parent.mkdir(parents=True)
    for path in (beside, Path("model/tokenizer.json"), Path("model/chat_template.jinja")):
        path.write_text("x")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    analyze = "analyze trace.jsonl --db :memory: --force"
    hashed = "hash log.jsonl --tokenizer model/tokenizer.json --force -o"
    for line in (
        f"{analyze} --html kvscope.toml",
        f"{analyze} --html engine-0.log",
        f"{analyze} --deployment other.toml --html engine-1.log",
        "export trace.jsonl --to mooncake -o kvscope.toml --force",
        "tune trace.jsonl --db :memory: --slo 1s --deployment recommendation.toml",
        f"{hashed} model/chat_template.jinja",
        f"{hashed} {beside}",
    ):
        assert run(line.split()) == ExitCode.USAGE, line
        assert "the file is read, too" in capsys.readouterr().err, line
    assert {path: path.read_bytes() for path in before} == before


def test_only_own_reports_are_replaced(tmp_path: Path, capsys: Streams) -> None:
    """Another file, or a trace, needs --force; where a stored trace was read from is never one."""
    trace, store, notes = write_trace(tmp_path), str(tmp_path / "k.duckdb"), tmp_path / "notes"
    before = trace.read_bytes()
    notes.write_text("mine\n")
    assert run(["ingest", str(trace), "--name", "a", "--db", store]) == ExitCode.DONE
    analyze = ["analyze", "a", "--db", store, "--html", str(notes)]
    export = ["export", "a", "--db", store, "--to", "mooncake", "-o"]
    for words in (analyze, [*export, str(notes)], [*export, str(trace)]):
        assert "replace it with --force" in streams_of(capsys, *words, code=ExitCode.USAGE).err
    assert notes.read_text() == "mine\n"
    fleet = ["fleet", "a", "--db", store, "--slo", "1s", "--capacity-blocks", "9", "--perfetto"]
    for words in (export, [*analyze[:-1]], fleet):
        assert run([*words, str(trace), "--force"]) == ExitCode.USAGE
        assert "the file is read, too" in capsys.readouterr().err
    with pytest.raises(UsageError, match="the file is read, too"):
        kvscope.fit("a", db=store, export=str(trace), force=True)
    assert trace.read_bytes() == before
    analysis = kvscope.analyze(str(trace))
    with pytest.raises(UsageError, match="no report or settings"):
        analysis.save_html(notes)
    analysis.save_html(notes, force=True)
    assert run(analyze) == ExitCode.DONE
