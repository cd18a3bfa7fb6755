"""LRU on common GPUs: what `tune` answers while it knows neither GPU, capacity nor latency."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from kvscope.app.latency import latency_for
from kvscope.app.monitor import Monitor
from kvscope.app.requests import TuneRequest
from kvscope.characterize.windows import round_windows
from kvscope.core import units
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.policies.lru import Lru
from kvscope.replay.settings import timed_by, with_groups
from kvscope.replay.workload import Workload
from kvscope.tuning.load import keeps_up
from kvscope.tuning.split import Split, counted_from, split_windows
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Evaluator, Trial, trial_of
from kvscope.tuning.verdict import SloAnswer


class GpuTrial(Struct, frozen=True):
    """One replica on one GPU with LRU, on the later requests; `note` says what its TTFT is."""

    DOCUMENT: ClassVar[str] = "*trial gpu=name slo_met deployment"
    deployment: ResolvedDeployment
    trial: Trial
    slo_met: SloAnswer
    note: str

    @property
    def name(self) -> str:
        """The GPU as `--gpu` takes it."""
        return str(self.deployment.stated.gpu)


class MachineStudy(Struct, frozen=True):
    """LRU on common GPUs, on the later requests: the last two windows of `split`.

    No policy is searched and nothing is recommended. `ask` is the command that names a machine.
    `source` names the trace as this command did, None for the last one.
    """

    DOCUMENT: ClassVar[str] = "trace target split ask machines"
    source: str | None
    trace: Trace
    target: Target
    split: Split
    machines: tuple[GpuTrial, ...]

    @property
    def model(self) -> str:
        """The model as `--model` takes it."""
        return str(self.machines[0].deployment.stated.model)

    @property
    def ask(self) -> str:
        """The command that names a machine."""
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
    workload = Workload(prompts, counted_from(setting, first, split.requests), round_windows(trace))
    evaluator = Evaluator(workload, target, stop=monitor.stop)
    blocks = where.pool.in_blocks_of(trace.block_size).blocks
    served = evaluator.served(Lru(), blocks)
    trial = trial_of(Lru(), blocks, served, target, evaluator.arrivals_per_s)
    met: SloAnswer = "meets" if trial.meets(target) else "misses"
    if not keeps_up(served, target.slo_s, setting.rate_scale):
        met = "overloaded"
    return GpuTrial(where, trial, met, latency.note)
