"""What a run found, and its capacity, as cells of tables."""

from __future__ import annotations

from kvscope.core import units
from kvscope.core.kv_size import ModelKv
from kvscope.core.runs import Run, RunSetting
from kvscope.report.run_names import hit_rate

NONE = "-"


def run_columns(setting: RunSetting) -> tuple[str, ...]:
    """The titles of the columns that a run's name and `run_cells` fill."""
    columns = ["policy", "hit rate"]
    if not setting.exact:
        columns.append("±")
    columns += ["evictions", "TTFT p50", "p95", "p99", "queued p95"]
    if setting.slo_s is not None:
        columns += ["TEL", "over SLO"]
    if setting.capacity_model == "engine":
        columns += ["preempted", "turned away"]
    return tuple(columns)


def run_cells(run: Run) -> tuple[str, ...]:
    """A run's figures as text."""
    outcome, setting = run.outcome, run.setting
    cells = [units.format_share(hit_rate(setting, outcome), 2)]
    if not setting.exact:
        cells.append(units.format_share(run.hit_rate_error or 0.0, 2))
    queued = outcome.queued_ttft_ms
    cells += [
        units.format_count(run.evictions),
        *(
            in_ms(value)
            for value in (outcome.ttft_ms.p50, outcome.ttft_ms.p95, outcome.ttft_ms.p99)
        ),
        NONE if queued is None else in_ms(queued.p95),
    ]
    if setting.slo_s is not None:
        cells += [in_s(outcome.tel_ms or 0.0), units.format_count(outcome.violations or 0)]
    if setting.capacity_model == "engine":
        cells += [
            units.format_count(run.preemptions or 0),
            units.format_count(run.turned_away or 0),
        ]
    return tuple(cells)


def size_columns(model: ModelKv | None) -> tuple[str, ...]:
    """The titles of the columns that `size_cells` fills."""
    return ("blocks", "tokens", *((f"{model.name} {model.dtype}",) if model else ()))


def size_cells(blocks: int, block_size: int, model: ModelKv | None) -> tuple[str, ...]:
    """A capacity in blocks, tokens, and bytes where a model is named."""
    tokens = blocks * block_size
    size = (units.format_size(model.bytes_for(tokens)),) if model else ()
    return (units.format_count(blocks), units.format_count(tokens), *size)


def in_ms(milliseconds: float) -> str:
    """Milliseconds in the unit that suits them."""
    return units.format_duration(milliseconds / 1e3)


def apart_in_ms(milliseconds: float) -> str:
    """A difference of latencies, with its sign."""
    sign = "+" if milliseconds > 0 else "-" if milliseconds < 0 else ""
    return f"{sign}{in_ms(abs(milliseconds))}"


def in_s(milliseconds: float) -> str:
    """Milliseconds as seconds: sums over many requests."""
    return f"{milliseconds / 1e3:,.1f}s"


def apart_in_s(milliseconds: float) -> str:
    """A difference of such sums, with its sign."""
    return f"{milliseconds / 1e3:+,.1f}s"
