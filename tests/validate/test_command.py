"""`kvscope validate` over HTTP, on a server that caches as vLLM does and on some that fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.store import results, traces
from kvscope.store.db import MEMORY, open_store
from tests.cli.shell import Streams
from tests.serving.fake import Behaviour, fake_server
from tests.validate.commands import TAKES, asked, document, tolerant


@pytest.mark.parametrize("outputs", ["forced", "bounded"])
def test_hits_are_those_predicted(trace: str, capsys: Streams, outputs: str) -> None:
    """Request by request on a server with the same rules, whoever says the outputs."""
    with fake_server(Behaviour(**TAKES)) as url:
        run(asked(trace, "--url", url, "--sequential", "--answers", outputs, "--json"))
    told = document(capsys)
    (only,) = told["runs"]
    assert (only["mismatched_requests"], only["mismatched_tokens"]) == (0, 0)
    assert only["predicted"]["hit_tokens"] == only["measured"]["hit_tokens"] > 0
    assert only["counted"] == 64
    assert told["figures"]["hit-rate"] == only["measured"]["token_hit_rate"]
    assert told["figures"]["lru.p95"] * 1e3 == pytest.approx(only["measured"]["ttft_ms"]["p95"])
    assert told["figures"]["mismatched"] == 0
    assert told["engine"]["block_size"] == 16
    assert told["requests"]["warmup"] == 16


def test_a_faithful_server_is_confirmed(trace: str, capsys: Streams) -> None:
    """Within a tolerance that no machine exceeds: exit code 0, the report, and the stored rows."""
    page = str(Path(trace).parent / "report.html")
    wide = ["--sequential", *tolerant(trace), "--slo", "6ms", "--html", page]
    with fake_server(Behaviour(**TAKES)) as url:
        assert run(asked(trace, "--url", url, *wide)) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "every request hit exactly the tokens predicted" in printed
    assert "Confirmed: the engine behaves as predicted." in printed
    html = Path(page).read_text()
    assert html.count('"predicted"') == html.count('"measured"') > 0
    with open_store(str(Path(trace).parent / "store.duckdb")) as store:
        found = traces.find(store, None)
        (kept,) = results.all_validations(store, found)
        (only,) = results.validation_runs(store, kept["validation_id"])
        assert len(only["measured_ttft_s"]) == 64
        assert only["predicted_hit_tokens"] == only["measured_hit_tokens"]
        traces.remove(store, found)
        assert store.rows("validate/validations", trace_id=found.trace_id) == []
        assert store.rows("validate/runs", validation_id=kept["validation_id"]) == []


def test_without_a_profile_no_ttft_is_judged(
    trace: str, capsys: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another engine's preset predicts none of this one: the hits alone are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latency.toml").unlink()
    with fake_server(Behaviour(**TAKES)) as url:
        command = ["validate", trace, "--db", ":memory:", "--url", url, "--sequential", "--json"]
        assert run([*command, "--replay", "lru"]) == 0
    told = document(capsys)
    assert [(check["name"], check["passed"]) for check in told["checks"]] == [
        ("hits", True),
        ("ttft", None),
    ]
    assert told["verdict"] == "inconclusive"


def test_another_cache_than_predicted_is_not_confirmed(trace: str, capsys: Streams) -> None:
    """Exit code 4: the server has a tenth of the blocks that it is said to have."""
    with fake_server(Behaviour(blocks=10, **TAKES)) as url:
        options = ["--sequential", "--capacity-blocks", "1000", "--json"]
        options += ["--slo", "1h", "--fail-on", "verdict!=confirmed,mismatched>1%,attainment<1"]
        assert run(asked(trace, "--url", url, *options)) == 4
    printed = capsys.readouterr()
    told, reasons = json.loads(printed.out), printed.err.splitlines()[-2:]
    assert reasons[0] == "fail-on verdict!=confirmed: verdict is not confirmed"
    assert reasons[1].startswith("fail-on mismatched>1%: mismatched is ")
    assert told["verdict"] == "not confirmed"
    assert told["runs"][0]["mismatched_requests"] > 0


def test_a_server_that_does_not_tell_hits_is_not_confirmed_by_them(
    trace: str, capsys: Streams
) -> None:
    """That check cannot tell, so the verdict is never `confirmed`."""
    with fake_server(Behaviour(tells_hits=False, **TAKES)) as url:
        run(asked(trace, "--url", url, "--sequential", "--tolerance", "100%", "--json"))
    told = document(capsys)
    assert told["verdict"] != "confirmed"
    assert told["runs"][0]["mismatched_requests"] is None


@pytest.mark.parametrize("pace", [["--in-flight", "8"], ["--rate-scale", "2"]])
def test_requests_leave_in_the_traces_order(trace: str, capsys: Streams, pace: list[str]) -> None:
    """Eight at once or at recorded times: all are sent, in order, and all are answered."""
    does = Behaviour(**TAKES)
    with fake_server(does) as url:
        run(asked(trace, "--url", url, *pace, "--json"))
    (only,) = document(capsys)["runs"]
    assert (only["failed_requests"], only["counted"]) == (0, 64)
    assert len(does.seen) == 3 + 80  # with the warm-up


def test_a_server_that_dies_leaves_what_was_measured(trace: str, capsys: Streams) -> None:
    """Exit code 5; the run is marked, and compared as far as it went."""
    with fake_server(Behaviour(dies_at=3 + 40, **TAKES)) as url:
        assert run(asked(trace, "--url", url, "--sequential", "--json")) == 5
    told = document(capsys)
    (only,) = told["runs"]
    assert only["counted"] == 40 - 16
    assert only["mismatched_requests"] == 0
    assert "died" in only["ended"]
    assert told["verdict"] != "confirmed"


def test_refusals_are_told(trace: str, capsys: Streams) -> None:
    """Some of them: counted, never confirmed. Nothing but refusals: exit code 5 at once."""
    with fake_server(Behaviour(refuses_from=3 + 60, **TAKES)) as url:
        run(asked(trace, "--url", url, "--sequential", "--json"))
    told = document(capsys)
    assert told["runs"][0]["failed_requests"] == 20
    assert told["runs"][0]["failures"] == ["status 400: not today"]
    assert told["verdict"] != "confirmed"
    does = Behaviour(refuses_from=3, **TAKES)
    with fake_server(does) as url:
        assert run(asked(trace, "--url", url, "--sequential")) == 5
    assert "not today" in capsys.readouterr().err
    assert len(does.seen) < 20


def test_a_request_that_times_out_is_one_of_many(trace: str, capsys: Streams) -> None:
    """The others go on."""
    with fake_server(Behaviour(stalls_at=3 + 30, stall_s=1.5, **TAKES)) as url:
        options = ["--sequential", "--timeout", "700ms", "--json"]
        run(asked(trace, "--url", url, *options))
    (only,) = document(capsys)["runs"]
    assert "timed out" in only["failures"]
    assert only["counted"] >= 55


def test_a_server_that_has_served_the_trace_before_hits_the_same(
    trace: str, capsys: Streams
) -> None:
    """Its cache cannot be emptied, so the tokens are others each time: nothing is hit by chance."""
    with fake_server(Behaviour(resets=False, **TAKES)) as url:
        for _ in range(2):
            run(asked(trace, "--url", url, "--sequential", "--json"))
            (only,) = document(capsys)["runs"]
            assert only["mismatched_requests"] == 0


def test_a_policy_that_learns_is_predicted_for_its_first_run_alone(
    trace: str, capsys: Streams
) -> None:
    """A server that runs on keeps what it learned; LRU learns nothing."""
    learned = str(Path(trace).parent / "gittins.toml")
    run(["fit", trace, "--db", MEMORY, "--export", learned])
    with fake_server(Behaviour(**TAKES)) as url:
        for policies, told in (("recommendation", True), ("lru", False)):
            twice = ["--url", url, "--sequential", "--repeats", "2", "--recommendation", learned]
            capsys.readouterr()
            run([*asked(trace, *twice), "--replay", policies])
            assert ("hits are predicted for the first run" in capsys.readouterr().err) == told


def test_nobody_there(trace: str, capsys: Streams) -> None:
    """Exit code 5, one line."""
    assert run(asked(trace, "--url", "http://127.0.0.1:9")) == 5
    assert "no answer" in capsys.readouterr().err
