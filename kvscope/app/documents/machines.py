"""The document of `kvscope tune` while it knows neither GPU, capacity nor latency."""

from __future__ import annotations

from typing import Literal

from kvscope.app.documents.base import Document, TraceFacts
from kvscope.app.documents.deployment import DeploymentFacts, deployment_facts
from kvscope.app.documents.tune import TargetFacts, TrialFigures
from kvscope.app.machines import MachineStudy
from kvscope.tuning.split import Split
from kvscope.tuning.verdict import SloAnswer


class MachineFigures(TrialFigures):
    """LRU on one replica with the GPU `gpu`; `deployment` has its pool and latency."""

    gpu: str
    slo_met: SloAnswer
    utilization: float
    deployment: DeploymentFacts


class MachinesDocument(Document):
    """LRU on common GPUs, on the later requests: the last two windows of `split`.

    No policy is searched and nothing is recommended. `ask` is the command that names a machine.
    """

    command: Literal["tune-machines"] = "tune-machines"
    trace: TraceFacts
    target: TargetFacts
    split: Split
    ask: str
    machines: tuple[MachineFigures, ...]


def machines_document(study: MachineStudy) -> MachinesDocument:
    """Return the document of LRU on common GPUs."""
    return MachinesDocument.build(
        study,
        trace=TraceFacts.build(study.trace),
        target=TargetFacts.of(study.target),
        machines=tuple(
            MachineFigures.build(
                machine.trial.outcome,
                machine.trial,
                machine,
                policy=machine.trial.policy.name,
                params=dict(machine.trial.policy.values),
                hindsight=False,
                target_tel_ms=machine.trial.tel_s * 1e3,
                meets_slo=machine.trial.meets(study.target),
                prefills_per_s=machine.trial.served_per_s,
                gpu=machine.name,
                deployment=deployment_facts(machine.deployment),
            )
            for machine in study.machines
        ),
    )
