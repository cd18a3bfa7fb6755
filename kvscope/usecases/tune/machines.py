"""LRU on common GPUs: the answer of `tune` without a known GPU, capacity or latency."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from kvscope.app.latency import latency_for
from kvscope.app.monitor import Monitor
from kvscope.characterize.distributions import round_windows
from kvscope.core import units
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.policies.lru import Lru
from kvscope.replay.derived_traces import at_rate
from kvscope.replay.settings import timed_by, with_groups
from kvscope.replay.workload import Workload
from kvscope.report.report import Report
from kvscope.report.section import Section, tabulate
from kvscope.report.words import NONE, count, share, significant
from kvscope.tuning.least import keeps_up
from kvscope.tuning.rule import SloAnswer
from kvscope.tuning.split import Split, counted_from, split_windows
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Evaluator, Trial, trial_of
from kvscope.usecases.documents import document
from kvscope.usecases.tune import COMMON_GPUS, TuneRequest


class GpuTrial(Struct, frozen=True):
    """LRU on a replica of one GPU, on the later requests; `note` says whether TTFT is fitted."""

    DOCUMENT: ClassVar[str] = "*trial gpu=name slo_met deployment"
    deployment: ResolvedDeployment
    trial: Trial
    slo_met: SloAnswer
    note: str

    @property
    def name(self) -> str:
        """The GPU as written for `--gpu`."""
        return str(self.deployment.stated.gpu)


class MachineStudy(Struct, frozen=True):
    """LRU on common GPUs, on the later requests: the last two windows of `split`.

    No policy is searched and nothing is recommended. `ask` is a `tune` command that names a
    machine. `source` is the trace as the user wrote it, None for the last used one.
    """

    DOCUMENT: ClassVar[str] = "trace target split ask machines"
    source: str | None
    trace: Trace
    target: Target
    split: Split
    machines: tuple[GpuTrial, ...]

    @property
    def model(self) -> str:
        """The model as written for `--model`."""
        return str(self.machines[0].deployment.stated.model)

    @property
    def ask(self) -> str:
        """A `tune` command that names a machine."""
        slo = units.format_duration(self.target.slo_s)
        gpu = self.machines[-2:][0].name  # h100, or else one that holds the model
        named = ("--slo", slo, "--gpu", gpu, "--model", self.model)
        return shlex.join(["kvscope", "tune", *filter(None, [self.source]), *named])


def study_machines(
    source: str | None,
    trace: Trace,
    prompts: Prompts,
    requests: Sequence[TuneRequest],
    monitor: Monitor,
) -> MachineStudy:
    """Return LRU on the deployment of each request, replayed as `tune` would.

    Raises InputError for a trace that is too short for `tune`.
    """
    target = requests[0].target
    split = split_windows(prompts, *requests[0].shares, target.percentile)
    machines = []
    with monitor.steps("replaying LRU on common GPUs") as advance:
        for request in requests:
            machines.append(_machine(trace, prompts, request, split, monitor))
            advance(1)
    return MachineStudy(source, trace, target, split, tuple(machines))


def _machine(
    trace: Trace, prompts: Prompts, request: TuneRequest, split: Split, monitor: Monitor
) -> GpuTrial:
    latency = latency_for(trace, request.profile, request.deployment, lambda: prompts)
    assert latency.deployment is not None  # noqa: S101  (each request names a GPU)
    target, where = request.target, latency.deployment
    setting = timed_by(replace(request.setting, slo_s=target.slo_s), latency.profile)
    setting, _ = with_groups(setting, request.model, trace.block_size, where)
    first = split.warmup_requests + split.training_requests
    workload = Workload(
        at_rate(prompts, setting.rate_scale),
        counted_from(setting, first, split.requests),
        round_windows(trace, rate_scale=setting.rate_scale),
    )
    evaluator = Evaluator(workload, target, stop=monitor.stop)
    blocks = where.pool.in_blocks_of(trace.block_size).blocks
    served = evaluator.served(Lru(), blocks)
    trial = trial_of(Lru(), blocks, served, target, evaluator.arrivals_per_s)
    met: SloAnswer = "meets" if trial.meets(target) else "misses"
    if not keeps_up(served, target.slo_s):
        met = "overloaded"
    return GpuTrial(where, trial, met, latency.note)


def report(study: MachineStudy) -> Report:
    """Return the report on LRU on common GPUs."""
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
