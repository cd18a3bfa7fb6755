"""`kvscope fit` as its user sees it: the JSON contract, the store, the file for the plugin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.cli.app import run
from kvscope.core.files import data_folder
from kvscope.core.hits import standard
from kvscope.learning.returns.offline import ReturnsOffline
from kvscope.policies.gittins import Gittins
from kvscope.replay.traffic import traffic
from kvscope.vllm_plugin.settings import read_settings
from tests.cli.shell import Streams, document, python, streams_of
from tests.golden.samples import sample

SAMPLES = data_folder("sample_traces")
CHATS = str(SAMPLES / "to-c.jsonl.gz")


def fitted(capsys: Streams, *arguments: str) -> dict[str, Any]:
    """Return the JSON document of `kvscope fit` with these arguments."""
    return document(capsys, "fit", *arguments, "--db", ":memory:")


def test_the_first_screen_answers(capsys: Streams) -> None:
    """Who follows an exponential, who does not, how stable it is; talk is elsewhere."""
    written = streams_of(capsys, "fit", CHATS, "--db", ":memory:")
    first = written.out.split("Models ──")[0]
    assert "Reuse clearly follows an exponential after text 2, text 4-6." in first
    assert "After text 1: too heavy a tail: use hyperexponential." in first
    assert "Between windows of 20 min 17 s" in first
    assert "Conversations begin at " in first
    assert "note:" not in written.out


def test_what_is_found_is_kept(tmp_path: Path, capsys: Streams) -> None:
    """In the store, where SQL finds it; and removing the trace removes it."""
    import duckdb

    db = str(tmp_path / "store.duckdb")
    assert run(["fit", CHATS, "--db", db]) == 0
    assert run(["fit", "to-c", "--db", db, "--json"]) == 0
    count = "SELECT count(*) FROM fit_models JOIN fits USING (fit_id)"
    with duckdb.connect(db) as connection:
        (kept,) = connection.execute(count).fetchone() or (0,)
    assert kept == 4 * 6
    assert run(["traces", "remove", "to-c", "--db", db]) == 0
    with duckdb.connect(db) as connection:
        assert connection.execute("SELECT count(*) FROM fit_models").fetchone() == (0,)


def test_fit_imports_no_more_than_it_needs() -> None:
    """Neither charts nor scipy's statistics, which take long to load."""
    done = python(
        f"""
        import json, sys
        from kvscope.cli.app import run
        code = run(["fit", {CHATS!r}, "--db", ":memory:", "--json"])
        unneeded = ["polars", "plotly", "scipy.stats", "pandas", "lifelines", "rich", "matplotlib"]
        print(json.dumps([code, [n for n in unneeded if n in sys.modules]]), file=sys.stderr)
        """
    )
    assert json.loads(done.stderr.splitlines()[-1]) == [0, []]


def test_all_requests_at_one_time(tmp_path: Path, capsys: Streams) -> None:
    """There is nothing to compare over time; the rest is fitted."""
    trace = tmp_path / "burst.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 2048, "output_length": 8, "hash_ids": [1, 2, 3, at // 2]}
        for at in range(200, 800)
    ]
    trace.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = fitted(capsys, str(trace))
    assert found["models"]
    assert found["windows"] is None


def exported(path: Path, *more: str) -> int:
    """Return the exit code of an export to `path`."""
    return run(["fit", CHATS, "--db", ":memory:", "--export", str(path), *more])


def test_the_plugin_reads_what_is_written(tmp_path: Path, capsys: Streams) -> None:
    """Policy, parameters as given or as the trace has them, and the fit to the trace's end."""
    path = tmp_path / "policy.toml"
    assert exported(path, "--param", "gittins.xi_tokens=8k") == 0
    assert f"policy written to {path}" in capsys.readouterr().err
    found = read_settings({}, {"KVSCOPE_RECOMMENDATION": str(path)})
    assert isinstance(found.policy, Gittins)
    assert found.policy.values["xi_tokens"] == 8000
    assert found.policy.values["next_prompt_tokens"] not in {0, 256}
    expected = ReturnsOffline().fit(traffic(sample("to-c"), standard()), found.policy)
    assert found.fitted is not None
    assert np.array_equal(found.fitted.index, expected.index)
    assert (found.fitted.requests, found.fitted.refits) == (2000, False)
    assert [one.name for one in tmp_path.iterdir()] == ["policy.toml"]


def test_standard_output_has_the_policy_alone(
    tmp_path: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a file, to be piped; no file is called `-`, and no report or document comes along."""
    monkeypatch.chdir(tmp_path)
    tlru = ["--policy", "tlru", "--param", "tlru.xi_tokens=512"]
    path = Path("policy.toml")
    assert exported(path, *tlru) == 0
    assert "Reuse" in capsys.readouterr().out
    assert exported(Path("-"), *tlru, "--html", "fit.html") == 0
    printed = capsys.readouterr()
    assert printed.out == path.read_text()
    assert "policy written" not in printed.err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["fit.html", "policy.toml"]


def test_the_pool_of_a_deployment_is_the_capacity(
    tmp_path: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of the trace; a stated capacity wins over the file of this folder."""
    monkeypatch.chdir(tmp_path)
    stated = "num_gpu_blocks = 2001\nblock_size = 32\nlatency = 'llama2-7b-a100'\n"
    (tmp_path / "kvscope.toml").write_text(f"schema = 1\n{stated}")
    pool, same, more = (tmp_path / name for name in ("pool.toml", "same.toml", "more.toml"))
    assert exported(pool) == 0
    assert "the pool of one engine, vllm@0.33: 4,000 blocks" in capsys.readouterr().err
    assert exported(same, "--capacity-blocks", "4000") == 0
    assert exported(more, "--capacity-blocks", "40") == 0
    assert "the pool of" not in capsys.readouterr().err
    assert pool.read_text() == same.read_text() != more.read_text()
    assert exported(tmp_path / "tlru.toml", "--policy", "tlru") == 0
