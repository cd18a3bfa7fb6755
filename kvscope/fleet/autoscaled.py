"""An autoscaled fleet next to fleets of constant size: the cost of scaling in hits."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.arrays import Bools, Int32s
from kvscope.fleet.options import Scaling
from kvscope.fleet.outcome import FleetOutcome
from kvscope.fleet.scaling import schedule
from kvscope.fleet.sweep import FleetRun, FleetSweep
from kvscope.replay.curve import first_counted, looked_up, weighted

AGES_S = (60.0, 300.0, 900.0, 3600.0)
ALIKE = 0.95  # of the hits that the same requests have where no replica is new


class AgeHits(Struct, frozen=True):
    """Hit rates by token of counted requests to replicas up to `until_s` old (null: any older).

    Each row starts at the age at which the one before ends. `alike_hit_rate` is that of the same
    requests on a constant fleet of the mean size.
    """

    DOCUMENT: ClassVar[str] = "until_s requests hit_rate alike_hit_rate"
    until_s: float | None
    requests: int
    hit_rate: float
    alike_hit_rate: float


class AutoscaledFleet(Struct, frozen=True):
    """The answer's router and policy with replicas added and removed by load.

    While counted requests arrived, `mean_replicas` served, and replicas were `added` and `removed`.
    `steady` always has the maximum number of replicas, `alike` always the rounded mean. `back_s` is
    the age from which new replicas hit at least 95 % as much as `alike` does for the same requests;
    0 for at once, null if never seen.
    """

    DOCUMENT: ClassVar[str] = (
        "low=scaling.low high=scaling.high requests_per_s=scaling.requests_per_s"
        " ready_s=scaling.ready_s mean_replicas added removed *outcome"
        " steady_hit_rate=steady.taken"
        " steady_ttft_at_percentile_ms=steady.target_ttft_s alike_replicas"
        " alike_hit_rate=alike.taken alike_ttft_at_percentile_ms=alike.target_ttft_s ages back_s"
    )
    scaling: Scaling
    mean_replicas: float
    added: int
    removed: int
    outcome: FleetOutcome
    steady: FleetOutcome
    alike_replicas: int
    alike: FleetOutcome
    ages: tuple[AgeHits, ...]

    @property
    def back_s(self) -> float | None:
        """The age (s) from which new replicas hit at least ALIKE times `alike`'s hits, or None."""
        back_s, begins_s = None, [0.0, *(row.until_s for row in self.ages)]
        for row, begin_s in reversed([*zip(self.ages, begins_s, strict=False)]):
            if row.hit_rate < ALIKE * row.alike_hit_rate:
                break
            back_s = begin_s
        return back_s

    @classmethod
    def of(cls, sweep: FleetSweep, answer: FleetRun, scaling: Scaling) -> Self:
        """Replay `answer` with its seed: autoscaled, with `scaling.high` and with mean replicas."""
        prompts, seed = sweep.prompts, answer.seed
        first = first_counted(prompts, sweep.workload.setting.definition)
        scaled = replace(answer.fleet, replicas=scaling.high, scaling=scaling)
        done = sweep.replay(scaled, seed)
        steady = replace(answer.fleet, replicas=scaling.high)
        made = schedule(prompts.arrival_s, scaling)
        begin_s, end_s = float(prompts.arrival_s[first]), float(prompts.arrival_s[-1])
        mean = made.mean(begin_s, end_s)
        changes = np.diff(made.replicas)[made.from_s[1:] >= begin_s]
        about = replace(answer.fleet, replicas=max(round(mean), 1))
        alike = sweep.replay(about, seed)
        age_s = np.zeros(0) if done.age_s is None else done.age_s
        edges = [0.0, *AGES_S, np.inf]
        rows = []
        for low, high in pairwise(edges):
            chosen = (age_s >= low) & (age_s < high)
            chosen[:first] = False
            if chosen.any():
                rows.append(
                    AgeHits(
                        None if np.isinf(high) else high,
                        int(chosen.sum()),
                        _rate(sweep, done.hit_blocks, chosen),
                        _rate(sweep, alike.hit_blocks, chosen),
                    )
                )
        return cls(
            scaling,
            mean,
            int(changes[changes > 0].sum()),
            int(-changes[changes < 0].sum()),
            sweep.outcome(done),
            sweep.outcome(sweep.replay(steady, seed)),
            about.replicas,
            sweep.outcome(alike),
            tuple(rows),
        )


def _rate(sweep: FleetSweep, hit_blocks: Int32s, chosen: Bools) -> float:
    """Return the hit share of the input tokens of the `chosen` requests."""
    prompts, definition = sweep.prompts, sweep.workload.setting.definition
    hits = weighted(prompts, definition, hit_blocks)[chosen].sum()
    return float(hits / max(looked_up(prompts, definition)[chosen].sum(), 1))
