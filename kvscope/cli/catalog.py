"""Lists of names that options take: `kvscope policies`, `routers`, `models`, `gpus` and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvscope.cli import output
from kvscope.cli.options import Json
from kvscope.core import units
from kvscope.deployment.gpus import GPUS
from kvscope.deployment.models import preset, preset_names
from kvscope.latency.profile import PRESETS
from kvscope.usecases import catalog

_RUNS_IN = {"vllm": "vLLM", "sglang": "SGLang", "vllm with kvscope's plugin": "vLLM + plugin"}


def policies(as_json: Json = False) -> None:
    """List the eviction policies.

    Each with where it runs: vLLM as it is or with kvscope's plugin, SGLang, or simulation only.
    """
    from kvscope.policies.registry import POLICIES

    def runs_in(entry: catalog.ListedPolicy) -> str:
        engines = ", ".join(_RUNS_IN[engine] for engine in entry.engines) or "simulation"
        return "oracle" if entry.policy.hindsight else engines

    columns = {
        "policy": lambda entry: entry.policy.name,
        "runs in": runs_in,
        "evicts first": lambda entry: entry.policy.summary,
    }
    _show("policies", tuple(map(catalog.ListedPolicy, POLICIES)), columns, as_json=as_json)


def routers(as_json: Json = False) -> None:
    """List the routers of fleets.

    Each with the inputs of its choice: the order of requests, earlier requests, the load of
    replicas, or the contents of their caches.
    """
    from kvscope.routers.registry import ROUTERS

    columns = {
        "router": lambda entry: entry.router.name,
        "sees": lambda entry: "reference" if entry.router.reference else entry.router.sees,
        "rule": lambda entry: entry.router.summary,
    }
    _show("routers", tuple(map(catalog.ListedRouter, ROUTERS)), columns, as_json=as_json)


def models(as_json: Json = False) -> None:
    """List the model presets.

    Each with its KV cache per token. `--model` also takes the path of a config.json.
    """
    columns = {
        "model": lambda entry: entry.model.name,
        "KV per token": lambda entry: units.format_size(entry.model.bytes_per_token),
        "dtype": lambda entry: entry.model.dtype,
        "attention": lambda entry: entry.summary,
    }
    listed = tuple(catalog.ListedModel(preset(name)) for name in preset_names())
    _show("models", listed, columns, as_json=as_json)


def gpus(as_json: Json = False) -> None:
    """List the GPUs that `--gpu` takes.

    Each with the data behind pool and latency; checked: latencies were compared with measured ones.
    """
    columns = {
        "gpu": lambda entry: entry.name,
        "memory": lambda entry: units.format_size(entry.total_bytes),
        "bf16": lambda entry: f"{entry.flops / 1e12:,.0f} TFLOP/s",
        "reads": lambda entry: f"{entry.memory_bytes_s / 1e12:.3g} TB/s",
        "link": lambda entry: f"{entry.link_bytes_s / 1e9:,.0f} GB/s",
        "checked": lambda entry: "yes" if entry.checked else "no",
    }
    _show("gpus", tuple(GPUS.values()), columns, as_json=as_json)


def latencies(as_json: Json = False) -> None:
    """List the latency presets, the default first.

    `--latency` also takes the file that `kvscope calibrate` writes.
    """
    columns = {
        "profile": lambda entry: entry.profile.name,
        "TTFT": lambda entry: entry.summary,
        "measured on": lambda entry: entry.profile.source.split(": ", 1)[-1].split(",")[0],
    }
    listed = tuple(map(catalog.ListedLatency, PRESETS.values()))
    _show("latencies", listed, columns, as_json=as_json)


def formats(as_json: Json = False) -> None:
    """List the trace formats.

    kvscope detects the format of a trace from its first lines; `--format` overrides that.
    """
    from kvscope.ingest.formats.registry import EXPORTERS, FORMATS

    read, written = ({each.name for each in known} for known in (FORMATS, EXPORTERS))
    listed = (
        *(catalog.ListedFormat.read(each, writes=each.name in written) for each in FORMATS),
        *(catalog.ListedFormat.written(each) for each in EXPORTERS if each.name not in read),
    )
    columns = {
        "format": lambda entry: entry.name,
        "kvscope": lambda entry: " ".join(
            verb for verb in ("reads", "writes") if getattr(entry, verb)
        ),
        "content": lambda entry: entry.summary,
    }
    _show("formats", listed, columns, as_json=as_json)


def _show(
    command: str,
    listed: tuple[Any, ...],
    columns: dict[str, Callable[[Any], str]],
    *,
    as_json: bool,
) -> None:
    if as_json:
        output.emit_result(command, {command: listed})
        return
    from kvscope.report.section import tabulate

    output.show_table(tabulate("", listed, columns, words=list(columns)[1:]))
