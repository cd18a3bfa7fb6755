"""The target of a tuning: which share of the requests has to meet the SLO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Measure = Literal["percentile", "violations"]
View = Literal["unloaded", "queued"]


@dataclass(frozen=True, slots=True)
class Target:
    """At least a share `percentile` of the requests has a TTFT within `slo_s`, in a view.

    At most a share 1 - percentile may violate the SLO, which is the same. `measure` is what makes
    one replay better than another: the TTFT at the percentile, or the share of violations.
    """

    slo_s: float
    percentile: float = 0.95
    measure: Measure = "percentile"
    view: View = "unloaded"
