"""The target of a tuning: the share of requests that must meet the SLO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvscope.core.units import format_percentile

Measure = Literal["percentile", "violations"]
View = Literal["unloaded", "queued"]


@dataclass(frozen=True, slots=True)
class Target:
    """At least a share `percentile` of the requests has a TTFT within `slo_s`, in a view.

    Equally: at most a share 1 - percentile violates the SLO. `measure` ranks replays: by the TTFT
    at the percentile, or by the share of violations. With a `tpot_slo_s`, the time per output token
    at the percentile has to be within it too.
    """

    slo_s: float
    percentile: float = 0.95
    measure: Measure = "percentile"
    view: View = "unloaded"
    tpot_slo_s: float | None = None

    @property
    def rank_name(self) -> str:
        """Return the name of the percentile: p95."""
        return format_percentile(self.percentile)

    @property
    def objective(self) -> str:
        """Return the name of the figure that ranks policies, as in kvscope.tuning.bootstrap."""
        return self.measure if self.measure == "violations" else self.rank_name
