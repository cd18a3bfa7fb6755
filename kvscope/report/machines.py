"""LRU on common GPUs: the answer of `tune` until a GPU and a model are named."""

from __future__ import annotations

from kvscope.app.machines import GpuTrial, MachineStudy
from kvscope.app.requests import COMMON_GPUS
from kvscope.core import units
from kvscope.report.report import Report
from kvscope.report.section import Section, tabulate
from kvscope.report.words import NONE, count, share, significant
from kvscope.usecases.documents import document


def report(study: MachineStudy) -> Report:
    """Return the GPUs in every form."""
    return Report(
        "kvscope tune",
        study.trace,
        document=lambda: document("tune-machines", study),
        screen=lambda: [_section(study)],
        sections=lambda: [_section(study)],
    )


def _section(study: MachineStudy) -> Section:
    split, target = study.split, study.target
    first = split.warmup_requests + split.training_requests + 1

    def pool(machine: GpuTrial) -> str:
        size = machine.deployment.pool_bytes
        assert size is not None  # noqa: S101  (each has a model)
        return units.format_size(size)

    def late(machine: GpuTrial) -> str:
        growing = machine.slo_met == "overloaded"  # a longer window has a worse percentile
        return NONE if growing else significant(machine.trial.target_s * 1e3)

    columns = {
        "GPU": lambda machine: machine.name,
        "pool": pool,
        "hit rate": lambda machine: share(machine.trial.outcome.token_hit_rate),
        f"{target.rank_name} TTFT (ms)": late,
        "within SLO": lambda machine: share(machine.trial.attainment),
        "rejected": lambda machine: count(machine.trial.rejected),
        "SLO": lambda machine: machine.slo_met,
    }
    low, high = (getattr(study.machines[0].deployment, f"latency_{end}") for end in ("low", "high"))
    note = (
        f"SLO: {target.rank_name} TTFT within {units.duration_in_words(target.slo_s)}; overloaded:"
        " the queue grows; rejected: longer than the pool. Pool and TTFT follow from data sheets:"
        f" prefill can take {low:.3g} to {high:.3g} times as long."
    )
    known = {machine.name for machine in study.machines}
    small = ", ".join(gpu for gpu in COMMON_GPUS if gpu not in known)
    return Section.of(
        "Which machine?",
        f"Name your GPU and model: {study.ask}",
        f"So far, LRU on one replica of {study.model}, requests {count(first)} to"
        f" {count(split.requests)} of the trace:",
        *(f"{each.name}: {each.note}" for each in study.machines if each.note),
        f"{study.model} does not fit on one {small}." if small else None,
        tabulate("", study.machines, columns, note, words=("SLO",)),
    )
