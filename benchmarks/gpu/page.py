"""The page docs/evidence/gpu.md: what was measured beside what kvscope predicts."""

from __future__ import annotations

import json
import re
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.deployment import tpot_s
from benchmarks.gpu.models import CONFIGS, write_model
from benchmarks.gpu.stages import POLICY_MODEL, STAGES
from benchmarks.table import Table
from kvscope.core.units import GIB
from kvscope.deployment.engines import parse_engine
from kvscope.deployment.gpus import Gpu, resolve_gpu
from kvscope.deployment.models import Model, read_config
from kvscope.deployment.pool import derive_pool
from kvscope.deployment.roofline import HIGH, LOW, REQUEST_S, roofline

Found = dict[str, Any]
_ON_VLLM = tuple(stage for stage in STAGES if stage not in {"torch", "fleet"})
_AVAILABLE = re.compile(r"Available KV cache memory: ([0-9.]+) GiB")
_OVERRIDDEN = re.compile(r"Overriding num_gpu_blocks=(\d+)")


def tables(folder: Path, gpu_name: str) -> list[Table]:
    """Return the tables of the stages that ran into `folder`, beside the rules for that GPU."""
    gpu = resolve_gpu(gpu_name)
    by_stage: dict[str, Found] = {
        stage: json.loads(path.read_text(encoding="utf-8"))
        for stage in STAGES
        if (path := folder / f"{stage}.json").exists()
    }
    made: list[Table] = []
    if "torch" in by_stage:
        made += _torch(by_stage["torch"], gpu)
    if started := [by_stage[stage] for stage in _ON_VLLM if "engine" in by_stage.get(stage, {})]:
        made += _vllm(started, gpu)
    if "fleet" in by_stage:
        made += _fleet(by_stage["fleet"])
    return made


def _torch(findings: Found, gpu: Gpu) -> Iterator[Table]:
    steps = findings["steps"]
    rates = steps["rates"].get("rates", {})
    stated = {"bf16_flops": gpu.flops, "memory_bytes_s": gpu.memory_bytes_s}
    yield Table(
        "Rates",
        f"{steps['rates'].get('device')}, torch {steps['rates'].get('torch')}: a matrix product of"
        " 8,192 squared in bf16, and copies of 4 GiB (host: 1 GiB, pinned).",
        ("rate", "measured", "in kvscope's table", "measured / table"),
        [
            [
                name.removesuffix("_s").replace("_", " "),
                f"{rate / 1e12:.2f} T/s" if rate > 1e12 else f"{rate / 1e9:.1f} G/s",
                f"{stated[name] / 1e12:.2f} T/s" if name in stated else "",
                f"{rate / stated[name]:.2f}" if name in stated else "",
            ]
            for name, rate in rates.items()
        ],
    )
    documents = {name: step for name, step in steps.items() if "cells" in step}
    models = _models(documents)
    yield from _latencies("plain torch", documents, models, gpu, request_s=0.0)


def _vllm(started: list[Found], gpu: Gpu) -> Iterator[Table]:
    """Yield the tables of the stages that started vLLM: pools, latency, hits and TTFT."""
    steps = [step for findings in started for step in findings["steps"].values()]
    alone = {name: step for findings in started for name, step in findings["steps"].items()}
    first = next((step for step in steps if "calibration" in step), None)
    models = {name: step for name, step in alone.items() if name in CONFIGS}
    if first:
        models[POLICY_MODEL] = first
    yield _pools(models, started[0]["engine"], gpu)
    if first is None:
        return
    calibrated = {POLICY_MODEL: first["calibration"]}
    yield from _latencies("vLLM", calibrated, _models(calibrated), gpu, request_s=REQUEST_S)
    yield _hits(first["pool"][0], steps)


def _pools(steps: dict[str, Found], engine: Found, gpu: Gpu) -> Table:
    """Return the pools of engines that were started, by model."""
    version = ".".join(engine["vllm"].split(".")[:2])
    rows = []
    for name, model in _models(steps).items():
        gib = _logged(steps[name], _AVAILABLE)
        if gib is None:
            continue
        blocks = _logged(steps[name], _OVERRIDDEN) or steps[name]["pool"][0] + 1
        pool = derive_pool(model, gpu, parse_engine(f"vllm@{version}"))
        rule = sum(term.bytes for term in pool.terms) / GIB
        rows.append(
            [
                name,
                f"{gib:.2f} GiB",
                f"{rule:.2f} GiB",
                f"{rule / gib - 1:+.1%}",
                f"{blocks:,.0f}",
                f"{steps[name]['start_s']:.0f} s",
            ]
        )
    return Table(
        "KV pool of vLLM",
        f"vLLM {engine['vllm']}, torch {engine['torch']}, {engine['device']}; random weights.",
        ("model", "logged", "by the rule", "error", "blocks", "first start"),
        rows,
    )


def _logged(step: Found, pattern: re.Pattern[str]) -> float | None:
    findings = [match for line in step.get("log", []) if (match := pattern.search(line))]
    return float(findings[-1][1]) if findings else None


def _models(names: Iterable[str]) -> dict[str, Model]:
    with tempfile.TemporaryDirectory() as folder:
        return {
            name: read_config(write_model(Path(folder), name) / "config.json") for name in names
        }


def _latencies(
    what: str, documents: dict[str, Found], models: dict[str, Model], gpu: Gpu, *, request_s: float
) -> Iterator[Table]:
    """Yield the tables of prefill and of decoding of some calibrations, beside the roofline."""
    prefill, decode = [], []
    for name, document in documents.items():
        profile = roofline(models[name], gpu, request_s=request_s)
        for cell in document["cells"]:
            uncached, cached = cell["uncached_tokens"], cell["cached_tokens"]
            rule_ms = float(profile.ttft_s(uncached, cached)) * 1e3
            prefill.append(
                [name, f"{uncached:,}", f"{cached:,}", cell["ttft_ms"]["median"], rule_ms]
            )
        for step in document.get("steps", []):
            batch, context = step["batch"], step["context_tokens"]
            rule_ms = tpot_s(models[name], gpu, 1, batch, context) * 1e3
            decode.append([name, f"{batch}", f"{context:,}", step["step_ms"], rule_ms])
    for title, columns, rows in (
        ("Prefill", ("model", "uncached", "cached"), prefill),
        ("A step of decoding", ("model", "requests", "tokens before"), decode),
    ):
        if rows:
            yield Table(
                f"{title}, {what}",
                _summary(rows),
                (*columns, "measured", "roofline", "error"),
                [
                    [
                        *row[:3],
                        f"{row[3]:.2f} ms",
                        f"{row[4]:.2f} ms",
                        f"{row[4] / row[3] - 1:+.0%}",
                    ]
                    for row in rows
                ],
            )


def _summary(rows: Sequence[Sequence[Any]]) -> str:
    ratios = [row[3] / row[4] for row in rows]
    inside = sum(LOW <= ratio <= HIGH for ratio in ratios) / len(ratios)
    errors = sorted(abs(row[4] / row[3] - 1) for row in rows)
    return (
        f"{len(rows)} points: error {statistics.median(errors):.0%} (median), measured over the"
        f" roofline {min(ratios):.2f} to {max(ratios):.2f}, {inside:.0%} of them within the band of"
        f" {LOW} to {HIGH}."
    )


def _hits(blocks: int, steps: list[Found]) -> Table:
    validations = [
        (pace, validation)
        for step in steps
        for pace, validation in step.items()
        if pace.startswith("--")
    ]
    runs = [(pace, run) for pace, validation in validations for run in validation["runs"]]
    verdicts = "; ".join(
        f"{pace}, {validation['runs'][0]['policy']}: {validation['verdict']}"
        for pace, validation in validations
    )
    return Table(
        "Hits and TTFT on vLLM beside the simulation",
        f"{POLICY_MODEL} with random weights and {blocks:,} blocks; a generated"
        " trace of conversations and one-shot calls; TTFT by the profile calibrated just before."
        f" Verdicts of `kvscope validate`: {verdicts}.",
        ("sent", "policy", "time", "measured", "predicted", "error", "hit rate", "hit tokens off"),
        [
            [pace, run["policy"], f"{what} {figure}", *_beside(run, times, figure)]
            for pace, run in runs
            for what, times in (("TTFT", "ttft_ms"), ("last token", "answer_ms"))
            if run["predicted"][times]
            for figure in ("p50", "p95")
        ],
    )


def _beside(run: Found, times: str, figure: str) -> list[str]:
    measured, predicted = (run[side][times][figure] for side in ("measured", "predicted"))
    return [
        f"{measured:.1f} ms",
        f"{predicted:.1f} ms",
        f"{predicted / measured - 1:+.1%}",
        f"{run['measured']['token_hit_rate']:.1%}",
        f"{run['mismatched_tokens'] / max(run['predicted']['hit_tokens'], 1):.2%}",
    ]


def _fleet(findings: Found) -> Iterator[Table]:
    for table in findings["steps"].values():
        if "rows" in table:
            yield Table(
                table["title"], table["description"], tuple(table["columns"]), table["rows"]
            )
