"""`kvscope fit` as its user sees it: stdout, stderr, exit codes, the JSON contract, the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.app import run
from kvscope.core.files import data_folder
from tests.cli.shell import document, python

SAMPLES = data_folder("sample_traces")
CHATS = str(SAMPLES / "to-c.jsonl.gz")
BIRTH_DEATH = str(SAMPLES / "birth-death.jsonl.gz")


def fitted(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Return the JSON document of `kvscope fit` with these arguments."""
    return document(capsys, "fit", *arguments, "--db", ":memory:")


def test_each_category_is_fitted_or_named_as_too_small(capsys: pytest.CaptureFixture[str]) -> None:
    """One model of each category is to be used; where there is none, the reason is given."""
    found = fitted(capsys, CHATS)
    for row in found["categories"]:
        chosen = [m for m in found["models"] if m["category"] == row["category"] and m["chosen"]]
        assert [m["model"] for m in chosen] == ([row["model"]] if row["model"] else [])
        if row["model"] is None:
            assert row["verdict"].startswith("too few gaps: ")
    assert run(["fit", CHATS, "--db", ":memory:"]) == 0
    assert "Too few gaps to fit: text 7+, " in capsys.readouterr().out


def test_the_generators_parameters_come_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the birth-death sample: a birth in 5 s, a turn a minute, death after 150 s."""
    found = fitted(capsys, BIRTH_DEATH)
    conversation = found["conversation"]
    for name, truth in {
        "birth_rate_per_s": 0.2,
        "turn_rate_per_s": 1 / 60,
        "death_rate_per_s": 1 / 150,
        "next_turn_probability": 5 / 7,
    }.items():
        low, high = conversation["interval"][name]
        assert low <= truth <= high
        assert low < conversation[name] < high
    assert all(row["verdict"] == "exponential fits" for row in found["categories"])
    assert found["next_prompt_tokens"][0]["mean"] == pytest.approx(100, rel=0.05)


def test_the_first_screen_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """Who follows an exponential, who does not, how stable it is; talk is elsewhere."""
    assert run(["fit", CHATS, "--db", ":memory:"]) == 0
    written = capsys.readouterr()
    first = written.out.split("Models ──")[0]
    assert "Reuse clearly follows an exponential after text 2, text 4-6." in first
    assert "After text 1: too heavy a tail: use hyperexponential." in first
    assert "Between windows of 20 min 17 s" in first
    assert "Conversations begin at " in first
    assert "note:" not in written.out


def test_windows_and_warmup(capsys: pytest.CaptureFixture[str]) -> None:
    """`--window` says how long they are, `--warmup` leaves out the first requests."""
    found = fitted(capsys, BIRTH_DEATH, "--window", "1h", "--warmup", "20%")
    assert found["windows"]["length_s"] == 3_600
    assert found["windows"]["step_s"] == 1_800
    assert found["start_s"] > 2_000
    assert min(row["start_s"] for row in found["windows"]["fits"]) == found["start_s"]
    whole = fitted(capsys, BIRTH_DEATH)
    assert found["conversation"]["requests"] == 8_000
    assert whole["conversation"]["requests"] == 10_000


def test_what_is_found_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_the_report_is_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--html` writes the page with its charts beside the terminal's report."""
    target = tmp_path / "fit.html"
    assert run(["fit", CHATS, "--db", ":memory:", "--html", str(target)]) == 0
    page = target.read_text(encoding="utf-8")
    assert "observed (Kaplan-Meier)" in page
    assert "Reuse probability over time" in page
    assert f"report written to {target}" in capsys.readouterr().err


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


def test_all_requests_at_one_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
