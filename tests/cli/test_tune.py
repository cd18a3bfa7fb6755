"""`kvscope tune` as its user sees it: verdicts, the JSON contract, what is written, mistakes."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.app import run
from kvscope.errors import ExitCode
from kvscope.ingest.base import Request
from kvscope.policies.base import Policy
from kvscope.tune import tuner
from kvscope.tune.evaluate import Evaluator
from tests.cli.replayed import write_profile
from tests.tune.examples import BLOCK, chats, disturbed, in_turn

Streams = pytest.CaptureFixture[str]
HERE = ("--capacity-blocks", "350")
HOSTILE = "<img src=x onerror=alert(1)></script><b>&"


def write_trace(path: Path, trace: list[Request], kind: str = "text") -> Path:
    """The requests as JSONL in the Bailian form."""
    rows = [
        {
            "chat_id": one.chat_id,
            "parent_chat_id": one.parent_chat_id,
            "timestamp": one.arrival_s,
            "input_length": one.input_tokens,
            "output_length": one.output_tokens,
            "type": kind,
            "turn": at // 20 + 1,
            "hash_ids": one.hash_ids,
        }
        for at, one in enumerate(trace)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twenty conversations in turn, of a hostile type."""
    return str(write_trace(tmp_path_factory.mktemp("tune") / "turns.jsonl", in_turn(), HOSTILE))


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A store of its own, 10 ms and 1 ms a token, tlru alone; files go to a folder of the test."""
    monkeypatch.chdir(tmp_path)
    profile = str(write_profile(tmp_path))
    return ("--db", str(tmp_path / "k.duckdb"), "--latency", profile, "--policies", "tlru")


def told(capsys: Streams, *arguments: str) -> str:
    """What `kvscope tune` prints, in one line."""
    code = run(["tune", *arguments])
    written = capsys.readouterr()
    assert code == 0, written.err
    return " ".join(written.out.split())


def document(capsys: Streams, *arguments: str) -> dict[str, Any]:
    """The JSON document of `kvscope tune`."""
    code = run(["tune", *arguments, "--json"])
    written = capsys.readouterr()
    assert code == 0, written.err
    found: dict[str, Any] = json.loads(written.out, parse_constant=_no_constant)
    return found


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_switch(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """What to switch to, from what to what, how sure, the price, and the flags to paste."""
    words = told(capsys, trace, *options, "--slo", "200ms", *HERE)
    assert "Recommendation: switch" in words
    found = re.search(
        r"Switch to tlru xi_tokens=(\d+): p95 TTFT 330ms -> (\d+)ms \(-[\d.]+%, 95% interval"
        r" -[\d.]+% to -[\d.]+%\), within the SLO of 200ms \(in (?:9\d|100)% of the"
        r" draws\), at 350 blocks, 5,600 tokens",
        words,
    )
    assert found is not None
    assert int(found[2]) <= 200
    assert re.search(r"With it: p50 330ms -> \d+ms .*hit rate 0.0% -> .*prefills/s 3.03 -> ", words)
    assert (
        f"SGLang: --radix-eviction-policy tlru --tlru-threshold {found[1]}"
        " --tlru-next-prompt-estimate 0 --max-total-tokens 5600" in words
    )
    assert "--scheduler-cls kvscope.engine.vllm_plugin.KvscopeScheduler --block-size 16" in words


def test_keep_lru(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """LRU is good enough, and less of it would be, too; vLLM's flags are for what there is."""
    words = told(capsys, trace, *options, "--slo", "200ms", "--capacity-blocks", "1000")
    assert "Keep LRU: LRU gives a p95 TTFT of 26ms at 1,000 blocks" in words
    assert re.search(r"You could shrink: LRU still keeps it at 3(89|9\d) blocks", words)
    assert "vLLM: --block-size 16 --num-gpu-blocks-override 1001" in words
    assert "SGLang: --radix-eviction-policy lru --max-total-tokens 16000" in words


def test_an_slo_that_no_cache_is_needed_for(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Every prompt computed whole is within the SLO: the least capacity is none."""
    words = told(capsys, trace, *options, "--slo", "1s", *HERE)
    assert "You could shrink: the SLO is kept without any cache." in words


def test_unreachable(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """What even an infinite cache leaves, and what a policy is worth all the same."""
    words = told(capsys, trace, *options, "--slo", "20ms", *HERE)
    assert "Recommendation: unreachable" in words
    assert "No cache can keep the SLO of 20ms: even an infinite one" in words
    assert "leaves a p95 TTFT of 26ms. LRU gives a p95 TTFT of 330ms" in words
    assert "The levers left are faster prefill and shorter prompts." in words
    assert "none, not even an infinite cache" in words


def test_add_capacity(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """LRU fails here, no policy is enough, more blocks are."""
    words = told(capsys, trace, *options, "--slo", "100ms", "--capacity-blocks", "100")
    assert "Recommendation: add-capacity" in words
    assert re.search(r"Add capacity: LRU gives .* no policy surely keeps the SLO of 100ms", words)
    assert re.search(r"keeps it at [\d,]+ blocks, [\d,]+ tokens, with a p95 TTFT of ", words)


def test_a_range_that_ends_too_soon(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """Nothing is claimed of a capacity that nobody looked at."""
    model = ("--model", "vicuna-7b")  # 8 MiB a block
    words = told(
        capsys,
        *(trace, *options, *model, "--slo", "30ms", "--capacity-blocks", "100"),
        *("--capacity-range", "80MiB..1.5GiB"),
    )
    assert "Add capacity" in words
    assert "None was found that does, where it was looked for." in words


def test_the_document_keeps_its_contract(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Scripts depend on these keys; they may only grow."""
    model = ("--model", "vicuna-7b", "--hbm", "80GiB")
    found = document(capsys, trace, *options, "--slo", "200ms", *HERE, *model)
    assert (found["command"], found["schema"]) == ("tune", 1)
    assert found["trace"]["name"] == "turns"
    best = found["recommendation"]
    assert set(best) >= {
        *("verdict", "policy", "params", "capacity_blocks", "capacity_gib", "baseline"),
        *("expected", "gain", "flags"),
    }
    assert (best["verdict"], best["policy"], best["leaves"]) == ("switch", "tlru", "leaf")
    assert set(best["params"]) >= {"xi_tokens", "xi_ms", "next_prompt_tokens"}
    assert best["params"]["xi_ms"] == pytest.approx(10 + best["params"]["xi_tokens"])
    assert best["params"]["ttl_s"] is None  # infinite
    assert best["capacity_blocks"] == 350
    assert best["capacity_gib"] == pytest.approx(350 * BLOCK * 524_288 / 2**30)
    for name in ("p50", "p90", "p95", "p99", "violations", "tel"):
        assert set(best["gain"][name]) == {"value", "low", "high"}
    assert best["baseline"]["ttft_ms"]["p95"] == 330
    assert best["expected"]["violations"] == 0
    assert best["expected"]["meets_slo"] is True
    assert set(best["flags"]) == {"sglang", "vllm"}
    assert "KvscopeScheduler" in best["flags"]["vllm"]
    assert found["split"] == {
        "warmup_requests": 80,
        "chosen_on_requests": 160,
        "judged_requests": 160,
        "judged_from_s": 240,
    }
    assert len(found["explored"]) > 20
    assert {one["requests"] for one in found["explored"]} == {160}
    assert not any(one["hindsight"] for one in found["explored"])
    assert [one["hindsight"] for one in found["ceilings"]] == [True, True]
    assert set(found["least_capacity"]) == {"lru", "best"}


@pytest.mark.parametrize("told_by_the_trace", [True, False], ids=["given", "inferred"])
def test_what_is_explored_is_the_same_whatever_judges(
    tmp_path: Path, options: tuple[str, ...], capsys: Streams, told_by_the_trace: bool
) -> None:
    """From file to JSON: other judged requests, the same trials, values, capacities, flags' xi."""
    trace = chats(7, told=told_by_the_trace)
    found = []
    for name, each in (("one", trace), ("other", disturbed(trace, 192, 7))):
        write = write_trace if told_by_the_trace else write_untold
        path = str(write(tmp_path / f"{name}.jsonl", each))
        wanted = ("--policies", "tlru,etlru,wa", "--slo", "200ms", "--block-size", "16")
        found.append(document(capsys, path, *options[:4], *wanted))
    one, other = found
    assert one["trace"]["lineage"] == ("given" if told_by_the_trace else "inferred")
    assert json.dumps(one["explored"]) == json.dumps(other["explored"])
    for key in ("capacity_blocks", "capacity_origin"):
        assert one[key] == other[key]
    chosen = [[(each["policy"], each["params"]) for each in doc["contenders"]] for doc in found]
    assert chosen[0] == chosen[1]
    for key in ("lru", "best"):
        least = [
            doc["least_capacity"][key] and doc["least_capacity"][key]["chosen"] for doc in found
        ]
        assert least[0] == least[1]
    assert one["infinite"] != other["infinite"]


def write_untold(path: Path, trace: list[Request]) -> Path:
    """The requests as JSONL in the Mooncake form, which knows no conversations."""
    rows = [
        {
            "timestamp": round((one.arrival_s or 0) * 1e3),
            "input_length": one.input_tokens,
            "output_length": one.output_tokens,
            "hash_ids": one.hash_ids,
        }
        for one in trace
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_gains_are_there_for_lru_too(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """What is kept gains nothing: zeros, where a script looks for figures."""
    found = document(capsys, trace, *options, "--slo", "200ms", "--capacity-blocks", "1000")
    best = found["recommendation"]
    assert (best["verdict"], best["policy"]) == ("keep-lru", "lru")
    assert best["gain"]["p95"] == {"value": 0, "low": 0, "high": 0}
    assert best["gain"]["violations"] == {"value": 0, "low": 0, "high": 0}


def test_unknown_intervals_are_null(
    tmp_path: Path, options: tuple[str, ...], capsys: Streams
) -> None:
    """Eight conversations are too few to tell: no number is made up."""
    few = str(write_trace(tmp_path / "few.jsonl", in_turn(8, 50)))
    found = document(capsys, few, *options, "--slo", "200ms", "--capacity-blocks", "140")
    (contender,) = found["contenders"]
    assert contender["gain"]["p95"]["value"] > 0.3
    assert contender["gain"]["p95"]["low"] is None
    assert found["recommendation"]["verdict"] == "add-capacity"
    words = told(capsys, few, *options, "--slo", "200ms", "--capacity-blocks", "140")
    assert "unknown: fewer than 10 conversations" in words


def test_simulate_replays_what_was_recommended(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """The same policy, values, capacity and latency, beside LRU: the figures that were judged."""
    found = document(capsys, trace, *options, "--slo", "200ms", *HERE)
    best = found["recommendation"]
    asked = ("simulate", trace, "--recommendation", "recommendation.toml", "--json")
    # 60.1 %: that of 400 requests no rounding leaves one less
    assert run([*asked, *options[:2], "--warmup", "60.1%"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [one["policy"] for one in results] == ["lru", "tlru"]
    for one, expected in zip(results, (best["baseline"], best["expected"]), strict=True):
        assert one["capacity_blocks"] == 350
        for name in ("requests", "hit_tokens", "ttft_ms", "queued_ttft_ms", "tel_ms", "violations"):
            assert one[name] == expected[name]
    values = {name: one for name, one in best["params"].items() if name != "xi_ms"}
    assert results[1]["params"] == values


@pytest.mark.parametrize(
    "said",
    [
        ("--policies", "lru"),
        ("--param", "tlru.xi_tokens=1"),
        ("--capacity-blocks", "3"),
        ("--points", "3"),
        ("--latency", "llama2-7b-a100"),
        ("--slo", "1s"),
    ],
)
def test_a_recommendation_settles_what_it_says(
    tmp_path: Path, trace: str, options: tuple[str, ...], capsys: Streams, said: tuple[str, str]
) -> None:
    """Options that say the same are refused by name, before the file is looked for."""
    asked = ["simulate", trace, *options[:2], "--recommendation", str(tmp_path / "none.toml")]
    assert run([*asked, *said]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert error.startswith(f"error: {said[0]}: says what the recommendation says")
    assert len(error.splitlines()) == 1


def test_a_malformed_recommendation_is_unreadable_input(
    tmp_path: Path, trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Exit code 3 and one line; what each mistake says is in tests/tune/test_file.py."""
    path = tmp_path / "r.toml"
    path.write_text("schema = 1\n", encoding="utf-8")
    assert run(["simulate", trace, *options[:2], "--recommendation", str(path)]) == ExitCode.INPUT
    error = capsys.readouterr().err
    assert error == f"error: {path}: [target]: missing; `kvscope tune` writes such a file\n"


def test_the_report_is_self_contained_and_escaped(
    tmp_path: Path, options: tuple[str, ...], capsys: Streams
) -> None:
    """One file, nothing from the network, and no trace's name or type becomes markup."""
    name = "a<b>&'c"
    nasty = str(write_trace(tmp_path / f"{name}.jsonl", in_turn(), HOSTILE))
    told(capsys, nasty, *options, "--slo", "200ms", *HERE, "--html", "r.html")
    page = Path("r.html").read_text(encoding="utf-8")
    head = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "a&lt;b&gt;&amp;&#x27;c" in head
    assert name not in head
    assert HOSTILE not in page
    assert "<img" not in head
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=[\"']?(https?:)?//", head)
    assert head.count('class="figure"') == 4
    assert "Recommendation: switch" in head


def test_explain_says_why(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """The target against xi, all that was tried, and who pays."""
    asked = (trace, *options, "--slo", "200ms", *HERE)
    plain, words = told(capsys, *asked), told(capsys, *asked, "--explain")
    for title in ("Why this xi", "Tried in the part to choose on", "Who gains and who pays"):
        assert title in words
        assert title not in plain
    assert "LRU now, and tlru xi_tokens=" in words


def test_what_was_assumed_is_said(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """Without --latency: which preset, and what another speed of prefill would change."""
    asked = (trace, *options[:2], "--policies", "tlru", "--slo", "30ms")
    words = told(capsys, *asked)
    assert "--latency llama2-7b-a100: a preset, 8.2ms + 60.9 us a token" in words
    assert "Were prefill 2 times as fast: " in words
    assert "Were prefill 0.5 times as fast: " in words
    assert "--capacity" in words
    given = told(capsys, trace, *options, "--slo", "200ms", *HERE)
    assert "Were prefill" not in given
    assert "--latency" not in given


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        (("--slo", "200"), "200ms"),
        (("--slo", "-1s"), "200ms"),
        (("--slo", "0s"), "above zero"),
        (("--slo", "fast"), "200ms"),
        (("--percentile", "101"), "p95"),
        (("--percentile", "p101"), "p95"),
        (("--percentile", "p100"), "p95"),
        (("--max-violations", "0%"), "5%"),
        (("--max-violations", "101%"), "5%"),
        (("--max-violations", "5%", "--percentile", "p95"), "leave out"),
        (("--model", "lama3-8b"), "did you mean"),
        (("--latency", "llama2-7b-a10"), "did you mean"),
        (("--policies", "tlruu"), "did you mean"),
        (("--policies", "belady"), "the ceilings are always shown"),
        (("--param", "tlru.xi=3"), "xi"),
        (("--param", "wa.ttl_s=3s"), "add wa to --policies"),
        (("--capacity-blocks", "0"), "2000"),
        (("--capacity", "16"), "16GiB"),
        (("--capacity", "16GiB", "--capacity-blocks", "5", "--model", "vicuna-7b"), "leave out"),
        (("--capacity-range", "5GiB"), "5GiB..80GiB"),
        (("--capacity-range", "80GiB..5GiB"), "5GiB..80GiB"),
        (("--warmup", "50%", "--judge", "60%"), "20% and 40%"),
        (("--judge", "0%"), "20% and 40%"),
        (("--judge", "140%"), "5%"),
        (("--view", "idle"), "queued"),
        (("--rate-scale", "0"), "write for example 2"),
        (("--output", "no/such/folder/r.toml"), "make it first"),
        (("--output", "."), "name a file in it"),
        (("--html", "no/such/folder/r.html"), "make it first"),
    ],
)
def test_bad_values_are_one_line_with_the_remedy(
    trace: str,
    options: tuple[str, ...],
    capsys: Streams,
    said: tuple[str, ...],
    remedy: str,
) -> None:
    """Exit code 2, a line with the option or the value and what to write; nothing is written."""
    base = () if "--slo" in said else ("--slo", "200ms")
    latency = () if "--latency" in said else options[2:4]
    policies = () if "--policies" in said else options[4:]
    code = run(["tune", trace, *options[:2], *latency, *policies, *base, *said])
    written = capsys.readouterr()
    assert code == ExitCode.USAGE, written.err
    (line,) = [one for one in written.err.splitlines() if not one.startswith("note:")]
    assert line.startswith("error: ")
    assert any(one in line for one in said)
    assert remedy in line
    assert written.out == ""
    assert not Path("recommendation.toml").exists()


def test_an_slo_has_to_be_named(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """There is no usual one."""
    assert run(["tune", trace, *options]) == ExitCode.USAGE
    assert "--slo" in capsys.readouterr().err


@pytest.mark.parametrize("earlier", [None, "of before\n"])
@pytest.mark.parametrize("at", ["search", "judge"])
def test_ctrl_c_writes_nothing(
    trace: str,
    options: tuple[str, ...],
    capsys: Streams,
    monkeypatch: pytest.MonkeyPatch,
    earlier: str | None,
    at: str,
) -> None:
    """Wherever it comes: exit code 130, no half an answer, and an earlier file stays as it is."""
    if earlier is not None:
        Path("recommendation.toml").write_text(earlier, encoding="utf-8")
    before = signal.getsignal(signal.SIGINT)
    _interrupt(monkeypatch, at)
    asked = ["tune", trace, *options, "--slo", "200ms", *HERE, "--html", "r.html"]
    assert run(asked) == ExitCode.INTERRUPTED
    assert signal.getsignal(signal.SIGINT) is before
    written = capsys.readouterr()
    assert written.out == ""
    assert "nothing was written" in written.err
    assert "Traceback" not in written.err
    assert not Path("r.html").exists()
    path = Path("recommendation.toml")
    assert (path.read_text(encoding="utf-8") if path.exists() else None) == earlier


def _interrupt(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Press Ctrl-C as the search begins, or as judging does."""
    if at == "search":
        ask: Callable[..., Any] = tuner.search

        def searching(*arguments: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return ask(*arguments)

        monkeypatch.setattr(tuner, "search", searching)
        return
    serve = Evaluator.served

    def judging(evaluator: Evaluator, policy: Policy, capacity_blocks: int) -> Any:
        if len(evaluator.workload.prompts.leaf) == 400:  # the whole trace
            signal.raise_signal(signal.SIGINT)
        return serve(evaluator, policy, capacity_blocks)

    monkeypatch.setattr(Evaluator, "served", judging)


def test_a_trace_of_lengths_cannot_be_tuned(
    tmp_path: Path, options: tuple[str, ...], capsys: Streams
) -> None:
    """No hashes, no reuse: said in one line with the remedy."""
    path = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:17:{at % 60:02}.9799600,{100 + at},10" for at in range(300)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    assert run(["tune", str(path), *options, "--slo", "200ms"]) == ExitCode.INPUT
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: {path}: tells lengths only")
    assert error.endswith("; take a trace with block hashes")


def test_a_trace_too_short_is_refused(
    tmp_path: Path, options: tuple[str, ...], capsys: Streams
) -> None:
    """100 requests a part are needed; nothing is written."""
    path = str(write_trace(tmp_path / "short.jsonl", in_turn(20, 5)))
    assert run(["tune", path, *options, "--slo", "200ms"]) == ExitCode.INPUT
    assert "100 requests are too few" in capsys.readouterr().err
    assert not Path("recommendation.toml").exists()


def test_nothing_is_written_to_a_dash(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """`--output -` prints the recommendation and leaves no file."""
    words = told(capsys, trace, *options, "--slo", "200ms", *HERE, "--output", "-")
    assert "Switch to tlru" in words
    assert not Path("-").exists()
    assert not Path("recommendation.toml").exists()


def test_lru_alone_can_be_asked_for(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """How much capacity LRU needs, with nothing beside it."""
    asked = (*options[:4], "--policies", "lru", "--slo", "100ms", "--capacity-blocks", "100")
    found = document(capsys, trace, *asked)
    assert found["recommendation"]["verdict"] == "add-capacity"
    assert found["recommendation"]["policy"] == "lru"
    assert found["contenders"] == []


@pytest.mark.parametrize("columns", [40, 80])
def test_narrow_terminals(
    trace: str,
    options: tuple[str, ...],
    capsys: Streams,
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
) -> None:
    """Every part is there, and at 80 columns no line is longer than the terminal is wide."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run(["tune", trace, *options, "--slo", "200ms", *HERE, "--explain"]) == 0
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    words = " ".join(out.split())
    assert "Switch to tlru" in words
    assert "Why this xi" in words
    # the first line is data for pipes as well, and stays one
    longest = max(len(line) for line in out.splitlines()[1:])
    assert columns < 80 or longest <= columns
