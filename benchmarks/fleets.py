"""Compare simulated fleets with NVIDIA's simulator and with published comparisons of routers.

`dynosim`: hits of Dynamo's router and of round robin on the Mooncake trace, both simulators in the
same run; needs an interpreter that has ai-dynamo-runtime (`make bench-fleets` makes one).
`dynosim-lag`: the same with KV events that come late.
`dynosim-apart`: the same with prefill and decode on workers of their own.
`samples`: every router on every sample and published trace. `event-lag`: KV events that come late.
`speed`: CPU seconds of a replay. `mooncake`: figure 5 of Mooncake (FAST'25). `llm-d`:
the four schedulers of llm-d's benchmark.
KVSCOPE_TRACES names the folder of the Mooncake trace. `--record` writes the tables into
docs/evidence/fleets.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import gzip
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks import ROOT
from benchmarks.fleet_speed import speed
from benchmarks.processes import measure, note
from benchmarks.router_choice import event_lag, samples
from benchmarks.sample_profiles import LLM_D_STAGES, SharedPrefixGroups
from benchmarks.table import Table, record
from benchmarks.traces import MOONCAKE
from kvscope.characterize.distributions import Windows
from kvscope.core.arrays import Float64s, Int64s
from kvscope.core.hits import standard
from kvscope.core.trace import Prompts
from kvscope.deployment.deployment import Deployment, resolve
from kvscope.fleet.disaggregated import Link, Stages
from kvscope.fleet.engines import replay_engines
from kvscope.fleet.kernel import Asked
from kvscope.fleet.outcome import Slo
from kvscope.fleet.replay import FleetReplay, asked, replay_fleet
from kvscope.fleet.sweep import Fleet, FleetSweep
from kvscope.ingest.pipeline import ingest
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.lru import Lru
from kvscope.replay.settings import run_setting
from kvscope.replay.traffic import Traffic, traffic
from kvscope.replay.workload import Workload
from kvscope.routers.balancers import LeastRequests, Random, RoundRobin
from kvscope.routers.base import Router
from kvscope.routers.dynamo import Dynamo
from kvscope.routers.llm_d import LlmD, LlmDPrecise
from kvscope.routers.references import MinTtft, MooncakeConductor
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from kvscope.synth.profiles import write_jsonl
from kvscope.vllm_sim import EngineSettings, StepCost

PAGE = ROOT / "docs" / "evidence" / "fleets.md"
PARTS = (
    *("samples", "event-lag", "speed", "dynosim", "dynosim-lag", "dynosim-apart", "mooncake"),
    "llm-d",
)
SEEDS, SPEED_ROUNDS = 5, 5
TOLERANCE_PP = 0.5
POINTS = tuple((replicas, blocks) for replicas in (4, 8, 16) for blocks in (4096, 5637))
LAG_POINT, LAGS_S = (8, 5637), (0.0, 1.0, 10.0, 60.0)
APART, LINK = ((8, 8), (6, 2), (3, 1)), (131_072, 50.0)  # bytes of llama3-8b's token, GB/s
LONE_TOKENS = 2_048, 16_384
STEP_TOKENS = 16_384

# Mean TTFT in s; figure 5 has no other numbers.
FIGURE_5 = {"random": 19.65, "load balancing": 5.27, "local cache-aware": 3.58, "global": 3.07}
NODE_TOKENS = 3_000_000  # Mooncake, FAST'25, section 5.3.2: KV cache of a node

# Output tokens/s, TTFT p90 and mean in s: means over the 16 stages after the first one.
LLM_D_PUBLISHED = {
    "precise": (8730.0, 0.542, 0.298),
    "approximate": (6944.4, 31.083, 13.316),
    "load": (4266.4, 94.865, 46.987),
    "random": (4428.7, 92.551, 45.281),
}
LLM_D_PODS, LLM_D_POOL_TOKENS = 8, 307_328
DRAIN_S = 600.0  # between stages, for all answers; idle caches do not change
LLM_D_OUTPUT_TOKENS = 245  # 8,730 output tokens/s over 35.6 requests/s; 1,000 were asked for
LLM_D_ROUTERS: dict[str, Router] = {
    "precise": LlmDPrecise({"prefix_weight": 3, "queue_weight": 2, "kv_weight": 2}),
    "approximate": LlmD({"prefix_weight": 1, "queue_weight": 1, "kv_weight": 1, "auto_tune": 0}),
    "load": LlmD({"prefix_weight": 0, "queue_weight": 1, "kv_weight": 1}),
    "random": Random(),
}


class Loaded(NamedTuple):
    """A trace as fleets take it; outputs are not cached."""

    prompts: Prompts
    traffic: Traffic
    asked: Asked

    def arriving(self, arrival_s: Float64s) -> Loaded:
        """Return the trace with other times of arrival."""
        return self._replace(
            prompts=replace(self.prompts, arrival_s=arrival_s),
            traffic=self.traffic._replace(arrival_s=arrival_s),
        )

    def crowded(self) -> Loaded:
        """Return the trace with tails and outputs that are cached too, but never hit."""
        whole = -(-self.traffic.history_tokens // self.traffic.block_size)
        rest = (whole - self.traffic.length).astype(np.int32)
        return self._replace(traffic=self.traffic._replace(anonymous=rest))

    def replay(
        self, profile: LatencyProfile, router: Router, replicas: int, blocks: int, seed: int = 0
    ) -> FleetReplay:
        """Replay LRU caches of `blocks` behind a router."""
        return replay_fleet(
            self.traffic, self.asked, profile, Lru(), router, replicas, blocks, seed=seed
        )

    def hit_share(self, run: FleetReplay) -> float:
        """Return the share of input tokens that hit."""
        tokens = self.traffic.input_tokens.astype(np.int64)
        hit = np.minimum(run.hit_blocks * np.int64(self.traffic.block_size), tokens)
        return float(hit.sum() / tokens.sum())


def load(path: Path) -> Loaded:
    """Read a trace."""
    with open_store(MEMORY) as store:
        prompts = load_prompts(store, ingest(store, str(path)).trace)
    return Loaded(prompts, traffic(prompts, standard(outputs="ignored")), asked(prompts))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleets", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="one part (repeat for more)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of NVIDIA's KV router a point")
    parser.add_argument(
        "--dynamo",
        type=Path,
        default=ROOT / ".venv-dynamo" / "bin" / "python",
        help="interpreter with ai-dynamo-runtime",
    )
    parser.add_argument("--record", action="store_true", help="also write docs/evidence/fleets.md")
    options = parser.parse_args()
    for part in options.only or PARTS:
        tables: dict[str, Callable[[], Table]] = {
            "samples": samples,
            "event-lag": lambda: event_lag(_mooncake()),
            "speed": lambda: speed(_mooncake(), SPEED_ROUNDS),
            "dynosim": lambda: dynosim(options.dynamo, options.rounds),
            "dynosim-lag": lambda: dynosim_lag(options.dynamo),
            "dynosim-apart": lambda: dynosim_apart(options.dynamo),
            "mooncake": figure_5,
            "llm-d": llm_d,
        }
        table = tables[part]()
        text = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}. {table.description}"
        text = replace(table, description=text).markdown()
        print(text, flush=True)
        if options.record:
            record(PAGE, text, part)


class Lone(NamedTuple):
    """DynoSim's engine by lone prompts: seconds of a prefill, of each of its tokens, of a step."""

    version: str
    base_s: float
    per_token_s: float
    step_s: float


class Point(NamedTuple):
    """One point of the comparison: hits in %, mean TTFT and the time that a replay took in s."""

    name: str
    theirs: list[float]
    ours: list[float]
    crowded: list[float]
    their_ttft_s: float
    our_ttft_s: float
    stepping_ttft_s: float | None
    their_wall_s: float
    our_wall_s: float

    @property
    def difference(self) -> float:
        """Points by which kvscope's hits are higher."""
        return float(np.mean(self.ours) - np.mean(self.theirs))

    def row(self) -> list[str]:
        """Return the cells of the table."""
        stepping = "" if self.stepping_ttft_s is None else f"{self.stepping_ttft_s:.3f}"
        return [
            *(self.name, _spread(self.theirs), _spread(self.ours), f"{self.difference:+.2f}"),
            f"{np.mean(self.crowded):.2f}",
            *(f"{self.their_ttft_s:.3f}", f"{self.our_ttft_s:.3f}", stepping),
            *(f"{self.their_wall_s:.1f}", f"{self.our_wall_s:.2f}"),
        ]


DYNOSIM_COLUMNS = (
    "replicas x blocks, router",
    "DynoSim: hits %",
    "kvscope: hits %",
    "difference, points",
    "outputs cached too: hits %",
    "DynoSim: mean TTFT s",
    "kvscope: mean TTFT s",
    "with simulated vLLMs",
    "DynoSim s",
    "kvscope s",
)


def dynosim(python: Path, rounds: int) -> Table:
    """Compare hits and TTFT with those of NVIDIA's simulator at six points."""
    routers = (Dynamo(), RoundRobin())
    cases = [(*point, router) for point in POINTS for router in routers]
    lone, points = _compared(python, rounds, cases)
    short, long = LONE_TOKENS
    largest = max(abs(point.difference) for point in points)
    description = (
        f"ai-dynamo-runtime {lone.version}; Mooncake conversation trace, 12,031 requests."
        f" {rounds} runs of DynoSim's KV router and {SEEDS} seeds of kvscope's, range in brackets:"
        f" ties are drawn. Prefills: the straight line through lone prompts of {short:,} and"
        f" {long:,} tokens on DynoSim ({lone.base_s * 1e3:.1f} ms + {lone.per_token_s * 1e6:.1f} µs"
        " a token). Decoding: DynoSim's mean time between tokens at the point; with simulated"
        f" vLLMs, for round robin alone, a step of {lone.step_s * 1e3:.2f} ms as after those"
        f" prompts. Largest difference of hits: {largest:.2f} points (target: {TOLERANCE_PP:g})."
        " The last columns are seconds of a replay; DynoSim simulates every decode step, kvscope's"
        " simple time model none."
    )
    rows = [point.row() for point in points]
    return Table("Against NVIDIA's simulator", description, DYNOSIM_COLUMNS, rows)


def dynosim_lag(python: Path) -> Table:
    """Compare them where KV events are late in both, at one point."""
    cases = [(*LAG_POINT, Dynamo({"event_lag_s": lag_s})) for lag_s in LAGS_S]
    lone, points = _compared(python, 1, cases)
    largest = max(abs(point.difference) for point in points)
    description = (
        f"ai-dynamo-runtime {lone.version}, its kv_event_lag_ms; otherwise as above, one run of"
        f" DynoSim a lag. Largest difference of hits: {largest:.2f} points."
    )
    rows = [
        [f"{point.name}, {lag_s:g} s late", *point.row()[1:7]]
        for point, lag_s in zip(points, LAGS_S, strict=True)
    ]
    return Table("With late KV events", description, DYNOSIM_COLUMNS[:7], rows)


def dynosim_apart(python: Path) -> Table:
    """Compare them where some workers prefill and some decode, behind round robin."""
    trace, blocks = load(_mooncake()), LAG_POINT[1]
    prompts, (token_bytes, gigabytes_s) = trace.prompts, LINK
    rows = []
    with TemporaryDirectory() as folder:
        plain = Path(folder) / "mooncake.jsonl"
        plain.write_bytes(gzip.decompress(_mooncake().read_bytes()))
        lone = _lone_prompts(python, Path(folder))
        profile = LatencyProfile(
            "dynosim", "on it", lone.base_s, lone.per_token_s, decode_base_s=lone.step_s
        )
        setting = run_setting(standard(outputs="ignored"), profile)
        sweep = FleetSweep(
            Workload(prompts, setting, Windows(1.0, 1)),
            blocks,
            Slo(1.0),
            engine=EngineSettings(blocks, max_num_seqs=256, max_num_batched_tokens=STEP_TOKENS),
        )
        link = Link(gigabytes_s * 1e9, token_bytes * prompts.block_size)
        stages = Stages(sweep, Fleet(RoundRobin(), Lru(), 1), link)
        for prefill, decode in APART:
            note(f"{prefill} workers prefill, {decode} decode")
            words = ("--decode", f"{decode}", f"{token_bytes}", f"{gigabytes_s}")
            peer = _peer(python, plain, prefill, blocks, "round_robin", *words)
            started = time.perf_counter()
            run = stages.replayed(prefill, decode)
            wall_s = time.perf_counter() - started
            outputs = np.maximum(prompts.output_tokens - 1, 1)
            tpot_s = ((run.end_s - run.token_s) / outputs)[prompts.output_tokens > 1]
            pairs = (
                (peer["hit_share"], trace.hit_share(run), 100, 2),
                (peer["mean_ttft_s"], run.ttft_s.mean(), 1e3, 0),
                (peer["p95_ttft_s"], np.percentile(run.ttft_s, 95), 1e3, 0),
                (peer["mean_tpot_s"], tpot_s.mean(), 1e3, 2),
                (peer["wall_s"], wall_s, 1, 1),
            )
            cells = [
                f"{value * unit:.{digits}f}" for *both, unit, digits in pairs for value in both
            ]
            rows.append([f"{prefill} + {decode}", *cells])
    figures = ("hits %", "mean TTFT ms", "TTFT p95 ms", "mean TPOT ms", "s")
    columns = [f"{tool}: {figure}" for figure in figures for tool in ("DynoSim", "kvscope")]
    description = (
        f"ai-dynamo-runtime {lone.version}; workers of {blocks:,} blocks, links of {gigabytes_s:g}"
        f" GB/s, {token_bytes:,} bytes a token; kvscope's decode replicas by fewest requests."
        " Latency as above, a decode step as after lone prompts. In both, the KV of a whole prompt"
        " moves and the decode worker samples the first token; in kvscope alone, a link moves one"
        " prompt after the other."
    )
    return Table("Prefill and decode apart", description, ("prefill + decode", *columns), rows)


def _compared(
    python: Path, rounds: int, cases: Sequence[tuple[int, int, Router]]
) -> tuple[Lone, list[Point]]:
    """Run both simulators with these replicas, blocks and routers."""
    trace = load(_mooncake())
    points = []
    with TemporaryDirectory() as folder:
        plain = Path(folder) / "mooncake.jsonl"
        plain.write_bytes(gzip.decompress(_mooncake().read_bytes()))
        lone = _lone_prompts(python, Path(folder))
        for replicas, blocks, router in cases:
            mode = "kv_router" if isinstance(router, Dynamo) else "round_robin"
            lag_s = router.values.get("event_lag_s", 0.0)
            note(f"{replicas} replicas of {blocks} blocks: {mode}, events {lag_s:g} s late")
            words = (mode, "--lag", f"{lag_s}")
            runs = range(rounds if router.draws else 1)
            peers = [_peer(python, plain, replicas, blocks, *words) for _ in runs]
            points.append(_point(trace, lone, router, replicas, blocks, peers))
    return lone, points


def _point(
    trace: Loaded,
    lone: Lone,
    router: Router,
    replicas: int,
    blocks: int,
    peers: Sequence[dict[str, Any]],
) -> Point:
    """Replay a point; `peers` are DynoSim's runs of it."""
    token_s = float(np.mean([peer["token_s"] for peer in peers]))
    profile = LatencyProfile(
        "dynosim", "measured on it", lone.base_s, lone.per_token_s, decode_base_s=token_s
    )
    seeds = range(SEEDS if router.draws else 1)
    started = time.perf_counter()
    own = [trace.replay(profile, router, replicas, blocks, seed) for seed in seeds]
    wall_s = (time.perf_counter() - started) / len(own)
    cost = StepCost(lone.base_s, lone.per_token_s, decode_base_s=lone.step_s)
    return Point(
        f"{replicas} x {blocks}, {router.name}",
        [100 * peer["hit_share"] for peer in peers],
        [100 * trace.hit_share(run) for run in own],
        [
            100 * trace.hit_share(trace.crowded().replay(profile, router, replicas, blocks, seed))
            for seed in seeds
        ],
        float(np.mean([peer["mean_ttft_s"] for peer in peers])),
        float(np.mean([run.ttft_s.mean() for run in own])),
        None if router.draws else _stepping_ttft_s(trace, cost, replicas, blocks),
        float(np.mean([peer["wall_s"] for peer in peers])),
        wall_s,
    )


def _stepping_ttft_s(trace: Loaded, cost: StepCost, replicas: int, blocks: int) -> float:
    """Return the mean TTFT where every replica behind round robin is a simulated vLLM."""
    settings = EngineSettings(blocks, max_num_seqs=256, max_num_batched_tokens=STEP_TOKENS)
    run = replay_engines(trace.prompts, Lru(), RoundRobin(), replicas, settings, cost)
    return float(np.nanmean(run.ttft_s))


def figure_5() -> Table:
    """Compare the order and the factors of Mooncake's figure 5."""
    trace = load(_mooncake())
    blocks = NODE_TOKENS // trace.traffic.block_size
    routers: dict[str, Router] = {
        "random": Random(),
        "load balancing": LeastRequests(),
        "local cache-aware": MinTtft(),
        "global": MooncakeConductor(),
    }
    mean_s: dict[int, dict[str, float]] = {}
    hits: dict[int, dict[str, float]] = {}
    fitted = {}
    for nodes in (16, 8):
        low, high = 1e-5, 1e-2
        for _ in range(24):
            profile = _prefill_only((low * high) ** 0.5)
            run_s = [trace.replay(profile, Random(), nodes, blocks, s).ttft_s for s in range(SEEDS)]
            if np.mean(run_s) < FIGURE_5["random"]:
                low = profile.per_token_s
            else:
                high = profile.per_token_s
        fitted[nodes] = profile.per_token_s
        mean_s[nodes], hits[nodes] = {}, {}
        for name, router in routers.items():
            runs = [
                trace.replay(profile, router, nodes, blocks, seed)
                for seed in range(SEEDS if router.draws else 1)
            ]
            mean_s[nodes][name] = float(np.mean([run.ttft_s.mean() for run in runs]))
            hits[nodes][name] = float(np.mean([trace.hit_share(run) for run in runs]))
    rows = [
        [
            f"{name}: {router.name}",
            f"{FIGURE_5[name]:.2f}",
            *(f"{mean_s[nodes][name]:.2f}" for nodes in (16, 8)),
            *(f"{100 * hits[nodes][name]:.1f}" for nodes in (16, 8)),
        ]
        for name, router in routers.items()
    ]
    columns = ("scheduling", "published s", "16 nodes s", "8 nodes s", "16: hits %", "8: hits %")
    description = (
        f"Mean TTFT; LRU caches of {NODE_TOKENS:,} tokens a node. The paper gives neither the"
        " prefill speed nor how many of its 16 nodes prefill: the time a token is fitted so that"
        f" random takes {FIGURE_5['random']} s ({fitted[16] * 1e3:.3f} ms with 16 nodes,"
        f" {fitted[8] * 1e3:.3f} ms with 8), and requests leave with their first token."
    )
    return Table("Mooncake, FAST'25, figure 5", description, columns, rows)


def llm_d() -> Table:
    """Compare llm-d's four schedulers on its published workload."""
    workload = dataclasses.replace(SharedPrefixGroups(), output_tokens=LLM_D_OUTPUT_TOKENS)
    sent = np.array([int(rate_per_s * duration_s) for rate_per_s, duration_s in LLM_D_STAGES])
    stage = np.repeat(np.arange(len(sent)), sent)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "groups.jsonl"
        write_jsonl(workload.generate(requests=len(stage), seed=1), path)
        trace = load(path)
    trace = trace.arriving(trace.traffic.arrival_s + stage * DRAIN_S)
    deployment = resolve(Deployment(gpu="h100", tp=2, model="qwen3-32b"), workload.block_size)
    profile, blocks = deployment.latency, LLM_D_POOL_TOKENS // workload.block_size
    settings = EngineSettings(
        blocks, deployment.max_num_seqs, max_num_batched_tokens=deployment.max_num_batched_tokens
    )
    rows = []
    for name, router in LLM_D_ROUTERS.items():
        note(f"llm-d: {name}")
        simple = trace.replay(profile, router, LLM_D_PODS, blocks)
        stepping = replay_engines(
            trace.prompts, Lru(), router, LLM_D_PODS, settings, StepCost.of(profile)
        )
        cells = [f"{name}: {router.name}", *_cells(*LLM_D_PUBLISHED[name])]
        for run in (stepping, simple):
            cells += _cells(*_by_stage(run, stage), hit_share=trace.hit_share(run))
        rows.append(cells)
    columns = (
        "scheduler",
        *("published: output tokens/s", "TTFT p90 s", "mean s"),
        *("simulated vLLMs: output tokens/s", "TTFT p90 s", "mean s", "hits %"),
        *("simple model: output tokens/s", "TTFT p90 s", "mean s", "hits %"),
    )
    description = (
        f"{LLM_D_PODS} pods of {LLM_D_POOL_TOKENS:,} tokens, profile `shared-prefix-groups`,"
        f" {LLM_D_OUTPUT_TOKENS} output tokens; means over the 16 stages from 3 to 60 requests/s,"
        " each begun when the one before is answered, as the benchmark's tool does. Nothing is"
        " fitted: latency is kvscope's own estimate for qwen3-32b on 2 x h100. Its estimate of the"
        f" pool would be {deployment.pool.blocks * workload.block_size:,} tokens."
    )
    return Table("llm-d's four schedulers", description, columns, rows)


def _cells(
    tokens_per_s: float, p90_s: float, mean_s: float, *, hit_share: float | None = None
) -> list[str]:
    cells = [f"{tokens_per_s:,.0f}", f"{p90_s:.2f}", f"{mean_s:.2f}"]
    return cells if hit_share is None else [*cells, f"{100 * hit_share:.1f}"]


def _by_stage(run: FleetReplay, stage: Int64s) -> tuple[float, float, float]:
    """Return output tokens/s, TTFT p90 and mean (s): means over the stages after the first one.

    Raises RuntimeError if a stage begins before the one before is answered.
    """
    figures, begin_s = [], 0.0
    for number, (_, duration_s) in enumerate(LLM_D_STAGES):
        ttft_s, last_s = run.ttft_s[stage == number], float(run.end_s[stage == number].max())
        end_s = begin_s + duration_s
        if last_s > end_s + DRAIN_S:
            raise RuntimeError(f"stage {number} takes longer than {DRAIN_S} s to answer")
        tokens_per_s = len(ttft_s) * LLM_D_OUTPUT_TOKENS / (max(end_s, last_s) - begin_s)
        figures.append((tokens_per_s, float(np.percentile(ttft_s, 90)), float(ttft_s.mean())))
        begin_s = end_s + DRAIN_S
    tokens_per_s, p90_s, mean_s = np.mean(figures[1:], axis=0).tolist()
    return tokens_per_s, p90_s, mean_s


def _prefill_only(per_token_s: float) -> LatencyProfile:
    return LatencyProfile("fitted", "fitted", 0.0, per_token_s, decode_base_s=0.0)


def _lone_prompts(python: Path, folder: Path) -> Lone:
    """Measure DynoSim's engine with prompts that are alone on it."""
    path, first = folder / "lone.jsonl", 0
    lines = []
    for number, tokens in enumerate(LONE_TOKENS):
        blocks = list(range(first, first + tokens // 512))
        first += len(blocks)
        request: dict[str, Any] = {"timestamp": 60_000 * number, "input_length": tokens}
        lines.append(json.dumps({**request, "output_length": 100, "hash_ids": blocks}))
    path.write_text("\n".join(lines), encoding="utf-8")
    peer = _peer(python, path, 1, POINTS[0][1], "round_robin", "--lone")
    short_s, long_s = (peer["ttft_s"][str(tokens)] for tokens in LONE_TOKENS)
    per_token_s = (long_s - short_s) / (LONE_TOKENS[1] - LONE_TOKENS[0])
    base_s = short_s - LONE_TOKENS[0] * per_token_s
    return Lone(peer["version"], base_s, per_token_s, peer["token_s"])


def _peer(python: Path, trace: Path, replicas: int, blocks: int, *words: str) -> dict[str, Any]:
    """Run DynoSim; return what it printed and the seconds that it took."""
    command = [str(python), "-m", "benchmarks.workers.dynosim", str(trace)]
    run = measure([*command, str(replicas), str(blocks), *words])
    return {**run.document, "wall_s": run.wall_s}


def _mooncake() -> Path:
    path = Path(os.environ.get("KVSCOPE_TRACES", "")) / MOONCAKE
    if not path.is_file():
        raise SystemExit(f"python -m benchmarks.fleets: KVSCOPE_TRACES has no {MOONCAKE}")
    return path


def _spread(values: Sequence[float]) -> str:
    """Return the mean, and the range of more than one value."""
    text = f"{np.mean(values):.2f}"
    return f"{text} [{min(values):.2f}, {max(values):.2f}]" if len(values) > 1 else text


if __name__ == "__main__":
    main()
