"""The page docs/evidence/gpu.md: what was measured beside what kvscope predicts."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.models import write_model
from benchmarks.table import Table
from kvscope.deployment.engines import parse_engine
from kvscope.deployment.gpus import GIB, Gpu, resolve_gpu
from kvscope.deployment.models import Model, read_config
from kvscope.deployment.pool import derive_pool
from kvscope.deployment.roofline import HIGH, LOW, REQUEST_S, roofline, tpot_s

Found = dict[str, Any]


def tables(folder: Path, gpu_name: str) -> list[Table]:
    """Return the tables of the stages that ran into `folder`, beside the rules for that GPU."""
    gpu = resolve_gpu(gpu_name)
    made: dict[str, Callable[[Found, Gpu], Iterator[Table]]] = {
        "torch": _torch,
        "vllm": _vllm,
        "policy": _policy,
        "fleet": _fleet,
    }
    return [
        table
        for stage, tables_of in made.items()
        if (path := folder / f"{stage}.json").exists()
        for table in tables_of(json.loads(path.read_text(encoding="utf-8")), gpu)
    ]


def _torch(found: Found, gpu: Gpu) -> Iterator[Table]:
    steps = found["steps"]
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


def _vllm(found: Found, gpu: Gpu) -> Iterator[Table]:
    engine, steps = found["engine"], found["steps"]
    version = ".".join(engine["vllm"].split(".")[:2])
    models = _models(steps)
    rows = []
    for name, step in steps.items():
        if not step.get("pool"):
            continue
        model, (blocks, size) = models[name], step["pool"]
        pool = derive_pool(model, gpu, parse_engine(f"vllm@{version}"))
        gib = next((_gib(line) for line in step["log"] if "Available KV cache memory" in line), 0.0)
        rule = sum(term.bytes for term in pool.terms) / GIB
        rows.append(
            [
                name,
                f"{gib:.2f} GiB",
                f"{rule:.2f} GiB",
                f"{rule / gib - 1:+.1%}" if gib else "",
                f"{blocks:,} x {size}",
                f"{step['start_s']:.0f} s",
            ]
        )
    yield Table(
        "KV pool of vLLM",
        f"vLLM {engine['vllm']}, torch {engine['torch']}, {engine['device']}; random weights, no"
        " option but the model.",
        ("model", "logged", "by the rule", "error", "blocks", "start"),
        rows,
    )
    documents = {
        name: step["calibration"] for name, step in steps.items() if step.get("calibration")
    }
    yield from _latencies("vLLM", documents, models, gpu, request_s=REQUEST_S)


def _models(names: Iterable[str]) -> dict[str, Model]:
    with tempfile.TemporaryDirectory() as folder:
        return {
            name: read_config(write_model(Path(folder), name) / "config.json") for name in names
        }


def _gib(line: str) -> float:
    return float(line.split("memory:")[1].split("GiB", maxsplit=1)[0])


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


def _policy(found: Found, gpu: Gpu) -> Iterator[Table]:
    rows = []
    for pace, validation in found["steps"].items():
        for run in validation.get("runs", []):
            for figure in ("p50", "p95"):
                predicted, measured = (
                    run[side]["ttft_ms"][figure] for side in ("predicted", "measured")
                )
                rows.append(
                    [
                        pace,
                        run["policy"],
                        figure,
                        f"{measured:.1f} ms",
                        f"{predicted:.1f} ms",
                        f"{predicted / measured - 1:+.1%}",
                        f"{run['measured']['token_hit_rate']:.1%}",
                        f"{run['mismatched_tokens'] / max(run['predicted']['hit_tokens'], 1):.2%}",
                    ]
                )
    words = "; ".join(
        f"{pace}: {validation['verdict']}, "
        + "; ".join(check["words"] for check in validation["checks"] if check["name"] == "gain")
        for pace, validation in found["steps"].items()
        if "runs" in validation
    )
    yield Table(
        "A policy against LRU",
        f"llama3-8b with random weights, a generated trace where the policy pays. {words}.",
        ("sent", "policy", "TTFT", "measured", "predicted", "error", "hit rate", "hit tokens off"),
        rows,
    )


def _fleet(found: Found, gpu: Gpu) -> Iterator[Table]:
    for table in found["steps"].values():
        if "rows" in table:
            yield Table(
                table["title"], table["description"], tuple(table["columns"]), table["rows"]
            )
