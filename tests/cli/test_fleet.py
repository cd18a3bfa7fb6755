"""`kvscope fleet`: one screen, a document, and conditions."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from kvscope.core.files import data_folder
from kvscope.fleet.options import Scaling
from kvscope.fleet.scaling import schedule
from tests.cli.once import computed_once
from tests.cli.replayed import PROFILE, write_short
from tests.cli.shell import Streams, document, streams_of

SAMPLE = str(data_folder("sample_traces") / "to-c.jsonl.gz")
ROUTERS = "round-robin,session,random,min-ttft"
OPTIONS = ("--capacity-blocks", "3000", "--router", ROUTERS, "--replicas", "7..9")
FLEET = ("fleet", SAMPLE, "--db", ":memory:", *OPTIONS)


@pytest.fixture(autouse=True, scope="module")
def _computed_once() -> Iterator[None]:
    """Compute each answer once: in words, as a document and with conditions it is the same."""
    with computed_once("fleet"):
        yield


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a trace of the sample's first 500 requests."""
    return write_short(tmp_path_factory.mktemp("trace"))


def test_the_document(capsys: Streams) -> None:
    """The answer is the least number that meets the SLO; losses add up; seeds have a spread."""
    made = document(capsys, *FLEET, "--slo", "500ms")
    assert made["verdict"] == "meets-slo"
    lines = {line["router"]: line["fewest"] for line in made["lines"]}
    assert [line["router"] for line in made["lines"]][-1] == "min-ttft"  # references last
    fleets = {(row["router"], row["replicas"]): row for row in made["fleets"]}
    assert len(fleets) == 4 * 3
    for router, fewest in lines.items():
        meeting = [count for count in (7, 8, 9) if fleets[router, count]["meets"]]
        assert fewest == min(meeting, default=None)
    assert made["fewest"] == made["chosen"] == lines["session"] == 9
    for (router, count), row in fleets.items():
        assert row["infinite"] == pytest.approx(0.560, abs=0.001)
        assert (row["spread"] is not None) == (router == "random")
        assert len(row["by_replica"]) == count
        assert bool(row["sent_tokens"]) == (count == 9)
        assert sum(each["latencies"]["requests"] for each in row["by_replica"]) == 1000
    assert {curve["router"] for curve in made["curves"]} == {"round-robin", "session", "random"}
    assert made["pooled"]["belady"] >= made["pooled"]["lru"] > fleets["session", 9]["hit_rate"]
    assert made["loop"]["kind"] == "open"
    assert made["time_model"] == "queue"
    low, high = made["fewest_interval"]  # of the requests drawn, high may be beyond what was tried
    assert low <= made["fewest"] <= (high or 99)


def test_closed_loop_and_engines_say_so(capsys: Streams, short: str) -> None:
    """What the time model and the loop are stands in every result."""
    few = ("fleet", short, "--db", ":memory:", "--capacity-blocks", "3000", "--slo", "500ms")
    few = (*few, "--replicas", "2", "--router", "session")
    made = document(capsys, *few, "--closed-loop", "--time-model", "engine")
    assert made["loop"]["kind"] == "closed"
    assert made["loop"]["estimated"] > 0
    assert made["loop"]["recorded"] == 0
    assert made["time_model"] == "engine"
    assert made["pooled"]["latencies"] is None
    assert run([*few, "--closed-loop"]) == ExitCode.DONE
    assert "Closed loop: a turn arrives its think time after" in capsys.readouterr().out


def test_a_deployment(capsys: Streams) -> None:
    """Pool, latency and price are the deployment's; replicas are simulated vLLMs, unless queues
    are named, whose answer is checked on them.
    """
    start = ("fleet", SAMPLE, "--db", ":memory:", "--gpu", "l4", "--model", "llama3-8b")
    start = (*start, "--router", "session", "--replicas", "3,4", "--gpu-hour", "0.5")
    engines = document(capsys, *start, "--slo", "10min")
    assert (engines["time_model"], engines["on_engines"]) == ("engine", None)
    low, high = engines["fewest_interval"]
    assert low <= engines["fewest"] <= (high or 99)
    start = (*start, "--time-model", "queue")
    made = document(capsys, *start, "--slo", "10s")
    assert made["capacity_tokens"] == made["capacity_blocks"] * 16 == 1803 * 16  # of one l4
    assert made["capacity_bytes"] == made["capacity_tokens"] * made["model"]["bytes_per_token"]
    assert made["price_hour"] == 0.5 * made["chosen"]
    assert made["on_engines"]["replicas"] == made["chosen"]
    queued, checked = made["fleets"][0], made["on_engines"]
    assert checked["ttft_at_percentile_ms"] != queued["ttft_at_percentile_ms"]
    assert "imulated vLLMs" in streams_of(capsys, *start, "--slo", "10s").out


def test_a_tier_below_one_replica_is_that_of_simulate(
    capsys: Streams, short: str, tmp_path: Path
) -> None:
    """Hits and times are equal to the digit, and the answer says how vLLM is started."""
    same = (short, "--db", str(tmp_path / "k.duckdb"), "--model", "llama3-8b", "--latency")
    same = (*same, "llama2-7b-a100")
    fleet = ("fleet", *same, "--capacity-blocks", "3000", "--time-model", "engine", "--slo", "2s")
    fleet = (*fleet, "--replicas", "1", "--router", "session", "--warmup", "0%")
    tiers = ("--tiers", "hbm=3000blocks,dram=8GiB", "--offload", "vllm@0.33")
    made = document(capsys, *fleet, "--tier-size", "8GiB")
    (known,) = document(capsys, "simulate", *same, *tiers, "--policy", "lru")["results"]
    (replayed,) = made["fleets"]
    assert made["tier"] == {"offload": "vllm@0.33", "gib": 8.0, "files_gib": 0.0}
    assert replayed["hit_rate"] == known["token_hit_rate"]
    assert replayed["latencies"]["ttft_ms"] == known["queued_ttft_ms"]
    without = document(capsys, *fleet)
    assert without["tier"] is None
    assert without["fleets"][0]["hit_rate"] < replayed["hit_rate"]
    screen = " ".join(streams_of(capsys, *fleet, "--tier-size", "8GiB").out.split())
    assert '"cpu_bytes_to_use": 8589934592' in screen
    assert "see the pools of other replicas without their tiers" in screen


def test_a_pool_that_replicas_share(capsys: Streams, short: str) -> None:
    """Hits from it and what it holds, in several sizes; the flags name one folder."""
    fleet = ("fleet", short, "--db", ":memory:", "--model", "llama3-8b", "--slo", "2s")
    fleet = (*fleet, "--capacity-blocks", "3000", "--time-model", "engine", "--replicas", "2")
    fleet = (*fleet, "--router", "round-robin")
    made = document(capsys, *fleet, "--tier-size", "8GiB+shared:16GiB")
    (replayed,), sizes = made["fleets"], made["pool_sizes"]
    assert [row["gib"] for row in sizes] == [0.0, 2.0, 4.0, 8.0, 16.0, None]
    assert sizes[4]["hit_rate"] == replayed["hit_rate"]
    assert 0 < sizes[4]["from_files"] == replayed["from_files"] < sizes[5]["from_files"]
    assert sizes[4]["used_gib"] == 16.0 < sizes[5]["used_gib"]
    assert sizes[4]["refused_gib"] > sizes[5]["refused_gib"] == sizes[4]["evicted_gib"] == 0
    evicting = "8GiB+shared:16GiB:evict=lru:bandwidth=20GB/s"
    screen = " ".join(streams_of(capsys, *fleet, "--tier-size", evicting).out.split())
    assert "The shared pool serves" in screen
    assert "of at most 20 GB/s for all together" in screen
    assert "with one PATH for all replicas where you delete the files used least" in screen
    assert "(evict=lru): an approximation" in screen
    section = (*fleet, "--tier-size", evicting, "--section", "pool")
    assert "Pool: shared by 2 replicas behind round-robin" in streams_of(capsys, *section).out
    private = document(capsys, *fleet, "--tier-size", "8GiB+ssd:8GiB")
    assert private["pool_sizes"] == []
    assert private["fleets"][0]["hit_rate"] < replayed["hit_rate"]


def test_replicas_that_come_and_go(capsys: Streams, tmp_path: Path) -> None:
    """Beside fleets of one size, which are those of `--replicas`; new replicas hit less."""
    lines = gzip.decompress(Path(SAMPLE).read_bytes()).splitlines()
    waves = tmp_path / "waves.jsonl"  # 200 requests in half an hour, 50 in the next
    rows = [json.loads(line) for line in lines[:1200]]
    for number, row in enumerate(rows):
        hour, part = divmod(number, 250)
        row["timestamp"] = 3600.0 * hour + (9.0 * part if part < 200 else 36.0 * part - 5400.0)
    waves.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    fleet = ("fleet", str(waves), "--db", ":memory:", "--gpu", "l40s", "--model", "llama3-8b")
    fleet = (*fleet, "--num-gpu-blocks", "3000", "--slo", "20s", "--router", "session")
    made = document(capsys, *fleet, "--replicas", "1,2,3,4", "--autoscale", "1..4@0.03")
    scaled = made["autoscaled"]
    sizes = {row["replicas"]: row for row in made["fleets"]}
    assert (scaled["low"], scaled["high"], scaled["ready_s"]) == (1, 4, 60.0)
    arrival_s = np.array([row["timestamp"] for row in rows])
    known = schedule(arrival_s, Scaling(1, 4, 0.03, 60.0))
    assert scaled["mean_replicas"] == pytest.approx(known.mean(arrival_s[600], arrival_s[-1]))
    assert 1 < scaled["mean_replicas"] < 4
    assert min(scaled["added"], scaled["removed"]) > 0
    assert scaled["steady_hit_rate"] == sizes[4]["hit_rate"] > scaled["hit_rate"]
    assert scaled["alike_replicas"] == round(scaled["mean_replicas"])
    assert scaled["alike_hit_rate"] == sizes[scaled["alike_replicas"]]["hit_rate"]
    assert len(scaled["by_replica"]) == 4
    young = [row for row in scaled["ages"] if row["until_s"] is not None]
    assert young
    assert sum(row["requests"] for row in young) < 600
    text = " ".join(
        streams_of(capsys, *fleet, "--replicas", "4", "--autoscale", "1..4@0.03").out.split()
    )
    assert f"{scaled['added']} added, {scaled['removed']} removed" in text
    assert "Scaling: by Kubernetes's defaults" in text
    assert document(capsys, *fleet, "--replicas", "4")["autoscaled"] is None


def test_prefill_and_decode_apart(capsys: Streams, short: str) -> None:
    """Every split of the answer's replicas, and the fewest that serve as well."""
    fleet = ("fleet", short, "--db", ":memory:", "--gpu", "l40s", "--model", "llama3-8b")
    fleet = (*fleet, "--slo", "20s", "--router", "session", "--replicas", "3,4,5")
    apart = (*fleet, "--disaggregate", "10GB/s", "--gpu-hour", "1.5")
    made = document(capsys, *apart)["disaggregated"]
    assert (made["bytes_per_s"], made["tried"]) == (1e10, 5)
    assert [(row["prefill"], row["decode"]) for row in made["alike"]] == [(1, 2), (2, 1)]
    fewest = made["fewest"]
    assert fewest["meets"]
    assert fewest["tpot_at_percentile_ms"] <= made["tpot_target_ms"]
    text = " ".join(streams_of(capsys, *apart).out.split())
    assert f"{fewest['prefill']} to prefill and {fewest['decode']} to decode are the" in text
    assert "as together" in text
    assert "sends the KV of whole prompts" in text
    assert document(capsys, *fleet)["disaggregated"] is None
    impossible = streams_of(capsys, *apart, "--tpot-slo", "1ms").out
    assert "With prefill and decode apart, up to 5 replicas miss p95 TTFT" in impossible


def test_policies_that_engines_do_not_follow_are_replayed_on_queues(
    capsys: Streams, short: str
) -> None:
    where = ("--db", ":memory:", "--gpu", "l4", "--model", "llama3-8b", "--slo", "20s")
    few = ("--router", "session", "--replicas", "2")
    made = document(capsys, "fleet", short, *where, *few, "--policy", "lru,s3fifo")
    assert made["time_model"] == "queue"


def test_an_answer_that_engines_do_not_hold(capsys: Streams, short: str) -> None:
    """The first line says so, the verdict too, and nothing is said to be set."""
    where = ("--db", ":memory:", "--gpu", "l4", "--model", "llama3-8b", "--slo", "20s")
    asked = ("fleet", short, *where, "--router", "sglang", "--replicas", "1..4")
    asked = (*asked, "--time-model", "queue")
    made = document(capsys, *asked)
    assert not made["on_engines"]["meets"]
    assert (made["verdict"], made["fewest"]) == ("misses-on-engines", made["chosen"])
    assert made["words"][0].startswith("On simulated vLLMs")
    assert run([*asked, "--fail-on", "verdict=misses-on-engines"]) == ExitCode.CHECK_FAILED
    assert "To set" not in capsys.readouterr().out
    misses = document(capsys, *asked, "--slo", "1ms")
    assert misses["on_engines"] is None  # what queues miss is not replayed again


def test_the_seeds_of_an_answer_that_misses(capsys: Streams, tmp_path: Path) -> None:
    """A router that draws at random has an outcome a seed; the median one says what is missed."""
    short = write_short(tmp_path, 300)
    where = ("--db", ":memory:", "--gpu", "l4", "--model", "llama3-8b", "--slo", "20s")
    routed = ("--router", "llm-d-precise", "--replicas", "2", "--time-model", "engine")
    text = " ".join(streams_of(capsys, "fleet", short, *where, *routed).out.split())
    assert "No fleet of up to 2 replicas meets p95 TTFT" in text


def test_more_load_than_servers(capsys: Streams, tmp_path: Path) -> None:
    """A queue that grows is called so: it has no percentile, and fails conditions on one."""
    profile = tmp_path / "latency.toml"
    profile.write_text(PROFILE.replace("per_token_ms = 1", "per_token_ms = 5"))
    few = ("--capacity-blocks", "100", "--router", "round-robin,min-ttft", "--replicas", "1")
    slow = ("fleet", SAMPLE, "--db", ":memory:", *few, "--slo", "1s", "--latency", str(profile))
    made = document(capsys, *slow)
    assert made["verdict"] == "overloaded"
    assert made["fewest"] is None
    (row,) = (each for each in made["fleets"] if each["router"] == "round-robin")
    assert row["latencies"]["overloaded"]
    assert row["latencies"]["ttft_ms"] is row["ttft_at_percentile_ms"] is None
    written = streams_of(capsys, *slow, "--fail-on", "p95>10min", code=ExitCode.CHECK_FAILED)
    assert "queues grow without end" in " ".join(written.out.split())
    assert "fail-on p95>10min: p95 is infinite" in written.err


def test_conditions(capsys: Streams) -> None:
    """On the answer, and on one router's; those that do not hold are not named."""
    hold = "replicas>8,round-robin.replicas>9,attainment<0.96,verdict=meets-slo"
    others = "replicas>9,p95>500ms,verdict=overloaded,session.hit-rate<0.3"
    conditions = ("--fail-on", hold, "--fail-on", others)
    assert run([*FLEET, "--slo", "500ms", *conditions]) == ExitCode.CHECK_FAILED
    *reasons, verdict = capsys.readouterr().err.splitlines()[-4:]
    assert reasons[:2] == [
        "fail-on replicas>8: replicas is 9",
        "fail-on round-robin.replicas>9: round-robin.replicas cannot be computed",
    ]
    assert reasons[2].startswith("fail-on attainment<0.96: attainment is 0.95")
    assert verdict == "fail-on verdict=meets-slo: verdict is meets-slo"


def test_sessions_need_conversations(capsys: Streams, tmp_path: Path) -> None:
    """By default a router by session is left out, and a note says so."""
    rows = (
        {"timestamp": 1000 * at, "input_length": 512, "output_length": 9, "hash_ids": [at]}
        for at in range(9)
    )
    trace = tmp_path / "strangers.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)))
    start = ("fleet", str(trace), "--db", ":memory:", "--capacity-blocks", "3", "--slo", "1s")
    start = (*start, "--replicas", "1,2")
    written = streams_of(capsys, *start, "--json")
    routers = {row["router"] for row in json.loads(written.out)["lines"]}
    assert "round-robin" in routers
    assert "session" not in routers
    assert "note: left out: session, since no two requests share a session" in written.err


def test_the_page_draws_every_chart(capsys: Streams, tmp_path: Path) -> None:
    """Attainment and TTFT over replicas, losses, and tokens by replica over time.

    The answer comes first, then routers, losses and what was assumed.
    """
    page = tmp_path / "fleet.html"
    assert run([*FLEET, "--slo", "500ms", "--full", "--html", str(page)]) == ExitCode.DONE
    drawn = page.read_text()
    for title in (
        "Requests within 500 ms",
        "p95 TTFT",
        "Share of the input tokens, of what an infinite cache hits",
        "Uncached tokens sent to each replica by session",
        "LRU's hit rate",
    ):
        assert f'"text":"{title}"' in drawn, title
    out = capsys.readouterr().out
    assert "Requests within the SLO, by number of replicas" in out
    assert "\n9 replicas behind session: the fewest that meet p95 TTFT ≤ 500 ms on" in out
    words = " ".join(out.split())
    for stated in (
        "on requests 1,001 to 2,000 (prefill queues), with p95",
        *("With one fewer, p95 TTFT is", "95% CI of that number: "),
        *("Time model: one prefill queue", "Open loop", "the whole fleet's traffic"),
    ):
        assert stated in words
