"""Compare the rules of `kvscope.deployment` with published figures: pools, TTFT and TPOT.

    python -m benchmarks.deployment            # prints the tables
    python -m benchmarks.deployment --record   # and writes them into docs/evidence/deployment.md

The figures lie in tests/deployment: pools.toml (start-up logs of vLLM), idle_ttfts.csv
(TensorRT-LLM 0.5.0, performance.md, "Low Latency"; aiconfigurator's trtllm runs at batch 1) and
latencies.csv (aiconfigurator-core 0.12.0, Apache-2.0, systems/silicon_sample.csv: aggregated runs
without data-parallel attention, up to 8 GPUs and 64 requests at a time).
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks import ROOT
from benchmarks.table import Table, record
from kvscope.core.units import GIB
from kvscope.deployment.engines import parse_engine
from kvscope.deployment.gpus import Gpu, resolve_gpu
from kvscope.deployment.models import Model, resolve_model
from kvscope.deployment.pool import derive_pool
from kvscope.deployment.roofline import (
    DECODE_LAYER_S,
    DECODE_LAYER_TP_S,
    DECODE_MEMORY_SHARE,
    DECODE_REQUEST_S,
    DECODE_STEP_S,
    REQUEST_S,
    kv_read,
    roofline,
)
from kvscope.latency.profile import LatencyProfile

FIGURES = ROOT / "tests" / "deployment"
PAGE = ROOT / "docs" / "evidence" / "deployment.md"
PLANNER = "llm-d-planner#205"
"""The source whose lines two constants of the pool rule were read off."""
_AT_MOST_REQUESTS = 8  # at a time: above, the queue decides and not the prefill
_REQUEST_S = {"vllm": REQUEST_S, "trtllm": 0.03, "sglang": 0.14}
_SHORTEST = 0.8  # lengths vary from this share of the nominal one


@dataclass(frozen=True, slots=True)
class PoolLine:
    """A published pool and what the rule says: GiB on each GPU, the weights where published."""

    name: str
    source: str
    gpu: Gpu
    kv_gib: float
    rule_kv_gib: float
    band_gib: float
    more_gib: float
    weights_gib: float | None
    rule_weights_gib: float
    activation_gib: float | None
    rule_activation_gib: float
    half: str
    """Of the lines of vLLM 0.20 and newer: "development", which the rule may be set by, "held out"
    or, of those found later, "fresh"; drawn by random.Random(45) and (46) before the rule was
    touched."""

    @property
    def inside(self) -> bool:
        """Whether the published pool lies within the rule's band."""
        return -self.band_gib <= self.rule_kv_gib - self.kv_gib <= self.band_gib + self.more_gib

    @property
    def error(self) -> float:
        """Error of the pool as a share of the published one."""
        return self.rule_kv_gib / self.kv_gib - 1


@dataclass(frozen=True, slots=True)
class LatencyPoint:
    """A published latency and what the rule says, in milliseconds."""

    model: str
    gpu: str
    engine: str
    measured_ms: float
    rule_ms: float

    @property
    def error(self) -> float:
        """Error of the rule as a share of the published figure."""
        return self.rule_ms / self.measured_ms - 1


def main() -> None:
    """Print the tables; with --record, write them into the page of the docs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deployment", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the tables into the docs")
    options = parser.parse_args()
    text = "\n".join(table.markdown() for table in tables())
    print(text)
    if options.record:
        record(PAGE, text, "deployment")


def tables() -> list[Table]:
    """Return the tables of the page."""
    return [_pool_table(pool_lines()), _latency_table(), _lines_table(pool_lines())]


@cache
def pool_lines() -> tuple[PoolLine, ...]:
    """Return every published pool with the rule's terms."""
    document = tomllib.loads((FIGURES / "pools.toml").read_text(encoding="utf-8"))
    return tuple(map(_pool_line, document["pool"]))


def _pool_line(line: dict[str, Any]) -> PoolLine:
    model = published_model(line["model"], line.get("weight_dtype"), line.get("kv_dtype"))
    if "checkpoint_gib" in line:  # as the index in the checkpoint's folder says
        model = replace(model, weights_total=line["checkpoint_gib"] * GIB, parts_assumed=False)
    if "max_model_len" in line:
        model = model.up_to(line["max_model_len"])
    gpu = resolve_gpu(line["gpu"])
    if "total_gib" in line:
        gpu = replace(gpu, total_bytes=round(line["total_gib"] * GIB))
    pool = derive_pool(
        model,
        gpu,
        parse_engine(line["engine"]),
        tp=line["tp"],
        utilization=line["utilization"],
        max_num_seqs=line.get("max_num_seqs"),
        max_num_batched_tokens=line.get("max_num_batched_tokens"),
    )
    terms = {term.name: term.bytes / GIB for term in pool.terms}
    tp = f" x {line['tp']}" if line["tp"] > 1 else ""
    return PoolLine(
        name=f"{model.name} {model.weight_dtype}, {line['gpu']}{tp}, {line['engine']}",
        source=line["source"],
        gpu=gpu,
        kv_gib=line["kv_gib"],
        rule_kv_gib=sum(terms.values()) - line.get("elsewhere_gib", 0),
        band_gib=sum(term.band_bytes for term in pool.terms) / GIB,
        more_gib=sum(term.more_bytes for term in pool.terms) / GIB,
        weights_gib=line.get("weights_gib"),
        rule_weights_gib=-terms["weights"],
        activation_gib=line.get("activation_gib"),
        rule_activation_gib=-terms["activations"],
        half=line.get("half", ""),
    )


@cache
def idle_points() -> tuple[LatencyPoint, ...]:
    """Return the published TTFTs of one request on an idle engine."""
    points = []
    for row in _rows("idle_ttfts.csv"):
        profile = _profile(row, float(row["request_ms"]) / 1e3)
        rule_ms = float(profile.ttft_s(int(row["input_tokens"]), 0)) * 1e3
        measured = float(row["ttft_ms"])
        points.append(LatencyPoint(row["model"], row["gpu"], "trtllm", measured, rule_ms))
    return tuple(points)


@cache
def closed_loop_points() -> tuple[LatencyPoint, ...]:
    """Return the published mean TTFTs of few callers, each sending when it has its answer.

    Of several runs of one setting, the one with the fewest callers counts.
    """
    fewest: dict[tuple[str, ...], dict[str, str]] = {}
    names = ("model", "weight_dtype", "gpu", "tp", "engine", "input_tokens", "lengths_vary")
    for row in _rows("latencies.csv"):
        setting = tuple(row[name] for name in names)
        if int(row["concurrency"]) > _AT_MOST_REQUESTS:
            continue
        if setting not in fewest or _load(row) < _load(fewest[setting]):
            fewest[setting] = row
    return tuple(
        LatencyPoint(
            row["model"],
            row["gpu"],
            row["engine"],
            float(row["ttft_ms"]),
            closed_loop_ttft_s(_profile(row, _REQUEST_S[row["engine"]]), row) * 1e3,
        )
        for row in fewest.values()
    )


def _load(row: dict[str, str]) -> tuple[int, float]:
    return int(row["concurrency"]), float(row["ttft_ms"])


def tpot_s(model: Model, gpu: Gpu, tp: int, batch: float, context: float) -> float:
    """Return the time of a decode step of `batch` requests with `context` tokens each.

    The profile's decode costs are this at a batch of 16 for the experts that are read.
    """
    shape = model.shaped()
    kv_bytes, _ = kv_read(model, tp)
    _, others = model.kinds.attending
    per_layer = model.layer_bytes_per_token(tp)[1]
    windowed = per_layer * others * min(context, model.kinds.window or context)
    read = shape.bytes_read(model.bits, batch) / tp + batch * (kv_bytes * context + windowed)
    layer = DECODE_LAYER_S + (DECODE_LAYER_TP_S if tp > 1 else 0)
    steps = shape.layers * layer + DECODE_STEP_S + DECODE_REQUEST_S * batch
    return read / (gpu.memory_bytes_s * DECODE_MEMORY_SHARE) + steps


@cache
def tpot_points() -> tuple[LatencyPoint, ...]:
    """Return the published times per output token, from 1,000 output tokens on."""
    points = []
    for row in _rows("latencies.csv"):
        outputs = int(row["output_tokens"])
        if outputs < 1_000:
            continue
        context = 0.9 * int(row["input_tokens"]) + 0.45 * outputs
        model = published_model(row["model"], row["weight_dtype"])
        gpu, tp, batch = resolve_gpu(row["gpu"]), int(row["tp"]), int(row["concurrency"])
        rule_ms = tpot_s(model, gpu, tp, batch, context) * 1e3
        measured = float(row["tpot_ms"])
        points.append(LatencyPoint(row["model"], row["gpu"], row["engine"], measured, rule_ms))
    return tuple(points)


def closed_loop_ttft_s(profile: LatencyProfile, row: dict[str, str]) -> float:
    """Return the mean TTFT of callers that send their next request when they have an answer.

    Prompts are computed in chunks, first come, first served; a step takes at least the published
    TPOT while others decode.
    """
    draw = random.Random(0)
    callers, shortest = int(row["concurrency"]), _SHORTEST if row["lengths_vary"] == "1" else 1.0
    inputs, outputs = int(row["input_tokens"]), int(row["output_tokens"])
    budget = 16_384 if resolve_gpu(row["gpu"]).family == "blackwell" else 8192
    decode_s = float(row["tpot_ms"]) / 1e3
    now, remaining = 0.0, 10 * callers
    waiting: list[list[float]] = []  # [time sent, tokens, tokens computed]
    decoding: list[int] = []  # output tokens to come
    ttfts: list[float] = []

    def send() -> None:
        nonlocal remaining
        if remaining:
            remaining -= 1
            waiting.append([now, _length(inputs), 0])

    def _length(nominal: int) -> int:
        return max(1, int(nominal * draw.uniform(shortest, 1)))

    for _ in range(callers):
        send()
    while waiting or decoding:
        if not waiting:
            steps = min(decoding)
            now += steps * decode_s
            decoding = [left - steps for left in decoding]
        else:
            chunks, room = [], budget
            for prompt in waiting:
                tokens = min(room, int(prompt[1] - prompt[2]))
                if tokens:
                    chunks.append((tokens, prompt[2]))
                    prompt[2] += tokens
                    room -= tokens
            now += max(step_s(profile, chunks), decode_s if decoding else 0.0)
            decoding = [left - 1 for left in decoding]
            computed = [prompt for prompt in waiting if prompt[2] == prompt[1]]
            waiting = [prompt for prompt in waiting if prompt[2] < prompt[1]]
            ttfts += [now - sent for sent, _, _ in computed]
            decoding += [_length(outputs) - 1 for _ in computed]
        ended = sum(left <= 0 for left in decoding)
        decoding = [left for left in decoding if left > 0]
        for _ in range(ended):
            send()
    return profile.request_s + statistics.fmean(ttfts)


def step_s(profile: LatencyProfile, chunks: Sequence[tuple[int, float]]) -> float:
    """Return the time of a step that computes chunks of (tokens, tokens before them)."""
    tokens = sum(chunk for chunk, _ in chunks)
    pairs = sum(chunk * (before + chunk / 2) for chunk, before in chunks)
    read = max(profile.floor_s, profile.per_token_s * tokens)
    return profile.base_s - profile.request_s + read + profile.per_token_pair_s * pairs


@cache
def published_model(name: str, weight_dtype: Any = None, kv_dtype: Any = None) -> Model:
    """Return a model of the figures: one of `configs/`, or a preset."""
    folder = FIGURES / "configs" / name
    return resolve_model(str(folder) if folder.is_dir() else name, kv_dtype, weight_dtype)


def _profile(row: dict[str, str], request_s: float) -> LatencyProfile:
    model = published_model(row["model"], row["weight_dtype"])
    return roofline(model, resolve_gpu(row["gpu"]), int(row["tp"]), request_s=request_s)


def _rows(name: str) -> list[dict[str, str]]:
    path: Path = FIGURES / name
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def median_and_p90(errors: Iterable[float]) -> tuple[float, float]:
    """Return the median and the 90th percentile of the errors, signs left out."""
    ranked = sorted(map(abs, errors))
    return statistics.median(ranked), ranked[int(0.9 * len(ranked))]


def _pool_table(lines: Sequence[PoolLine]) -> Table:
    def row(name: str, of: Callable[[PoolLine], bool], error: Callable[[PoolLine], float]) -> None:
        chosen = [line for line in lines if of(line)]
        median, p90 = median_and_p90(map(error, chosen))
        inside = band = ""
        if name.startswith("pool,"):
            inside = str(sum(line.inside for line in chosen))
            shares = ((line.band_gib + line.more_gib) / line.kv_gib for line in chosen)
            band = f"{statistics.median(shares):.1%}"
        rows.append([name, str(len(chosen)), f"{median:.2%}", f"{p90:.1%}", inside, band])

    rows: list[list[str]] = []
    row("pool, vLLM 0.19 on H100", lambda line: line.source == PLANNER, lambda line: line.error)
    row(
        "pool, others to 0.19",
        lambda line: line.source != PLANNER and not line.half,
        lambda line: line.error,
    )
    for half in ("development", "held out", "fresh"):
        of_half = partial(_of_half, half)
        row(f"pool, 0.20 and newer, {half}", of_half, lambda line: line.error)
    row(
        "pool, as a share of the GPU's memory",
        bool,
        lambda line: (line.rule_kv_gib - line.kv_gib) * GIB / line.gpu.total_bytes,
    )
    row(
        "weights",
        lambda line: line.weights_gib is not None,
        lambda line: line.rule_weights_gib / (line.weights_gib or 1) - 1,
    )
    row(
        "activations, as a share of the GPU's memory",
        lambda line: line.activation_gib is not None,
        lambda line: (
            (line.rule_activation_gib - (line.activation_gib or 0)) * GIB / line.gpu.total_bytes
        ),
    )
    return Table(
        "KV pool",
        f"{sum(line.inside for line in lines)} of {len(lines)} published pools lie within the band"
        " of the rule. Two constants of the rule were read off the lines of vLLM 0.19.",
        ("figure", "lines", "error, median", "p90", "inside the band", "band of the pool, median"),
        rows,
    )


def _of_half(half: str, line: PoolLine) -> bool:
    return line.half == half


def _latency_table() -> Table:
    loops, tpots = closed_loop_points(), tpot_points()
    parts = {
        "TTFT, idle engine": list(idle_points()),
        f"TTFT, vLLM, up to {_AT_MOST_REQUESTS} callers": [p for p in loops if p.engine == "vllm"],
        f"TTFT, all engines, up to {_AT_MOST_REQUESTS} callers": list(loops),
        "TPOT, vLLM": [p for p in tpots if p.engine == "vllm"],
        "TPOT, all engines": list(tpots),
    }
    rows = []
    for name, points in parts.items():
        median, p90 = median_and_p90(point.error for point in points)
        ratios = sorted(point.measured_ms / point.rule_ms for point in points)
        low, high = (ratios[int(share * (len(ratios) - 1))] for share in (0.1, 0.9))
        band = f"{low:.2f}–{high:.2f}"
        rows.append([name, str(len(points)), f"{median:.0%}", f"{p90:.0%}", band])
    return Table(
        "Latency",
        "Callers send when they have an answer, so their TTFT contains queueing: it is replayed,"
        " not read as an idle one. The ratio is measured over predicted, 10th to 90th percentile.",
        ("figure", "points", "error, median", "p90", "ratio"),
        rows,
    )


def _lines_table(lines: Sequence[PoolLine]) -> Table:
    rows = [
        [
            line.name,
            f"{line.kv_gib:.2f}",
            f"{line.rule_kv_gib:.2f}",
            f"{line.error:+.1%}",
            "" if line.inside else "outside",
        ]
        for line in lines
    ]
    return Table(
        "Every published pool",
        "GiB on each GPU, as logged and by the rule.",
        ("model, GPUs, engine", "logged", "rule", "error", "band"),
        rows,
    )


if __name__ == "__main__":
    main()
