"""The goal of a tuning: the share of requests that must meet the SLO, and allowed regressions."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from msgspec import Struct

from kvscope.core.errors import UsageError
from kvscope.core.units import format_percentile

Measure = Literal["percentile", "violations"]
View = Literal["unloaded", "queued"]
ATTAINMENT_LOSS = 0.005
TAIL_RATIO = 1.02
MAX_P50_REGRESSION = 0.25
MIN_THROUGHPUT = 0.95
MAX_MEAN_REGRESSION = 0.05
P50_OF_SLO, P50_RATIO = 0.5, 2.0
"""The median may grow to this share of the SLO, but to no more than this multiple of LRU's."""
SPARE_SHARE = 0.5
"""The share of the replicas' time without prefills that longer prefills may take."""
CERTAIN, LIKELY = 0.95, 0.8
"""The least likelihood of a gain: to change now, and to confirm the change on a canary."""
WARMUP, VALIDATION, HELD_OUT = 0.2, 0.25, 0.25
"""Shares of the requests, by default; the training window has the rest."""


def check_shares(warmup: float, validation: float, held_out: float) -> None:
    """Raise UsageError for shares of the requests that leave a window empty."""
    if not (held_out > 0 and validation > 0 and 0 <= warmup < 1 - held_out - validation):
        raise UsageError(
            f"{warmup:.3g}, {validation:.3g} and {held_out:.3g} of the requests leave a window"
            " empty",
            where="--warmup, --validation, --judge",
            remedy="take for example 20%, 25% and 25%",
        )


class Target(Struct, frozen=True):
    """At least a share `percentile` of the requests must have a TTFT within `slo_s`.

    So at most a share 1 - percentile violates the SLO. `view`: TTFT on an idle engine or behind
    earlier requests. `measure` ranks replays by the TTFT at the percentile or by the share of
    violations. With a `tpot_slo_s`, the time per output token at the percentile must meet it.
    """

    DOCUMENT: ClassVar[str] = "figure limit_ms=slo_s slo_ms percentile measure view tpot_slo_ms"
    slo_s: float
    percentile: float = 0.95
    measure: Measure = "percentile"
    view: View = "unloaded"
    tpot_slo_s: float | None = None

    @property
    def rank_name(self) -> str:
        """Return the name of the percentile, such as `p95`."""
        return format_percentile(self.percentile)

    @property
    def figure(self) -> str:
        """Return the name of the latency that must meet the SLO, such as `p95 TTFT`."""
        return f"{self.rank_name} TTFT"

    @property
    def objective(self) -> str:
        """Return the name of the figure that ranks policies: `violations`, or such as `p95`."""
        return self.measure if self.measure == "violations" else self.rank_name


class Limits(Struct, frozen=True):
    """How much worse than LRU a policy may be.

    The 95 % interval of the change of SLO attainment (a share of the requests) must not reach below
    -`attainment_loss`, and those of TEL and of the target's percentile, relative to LRU's, not
    above `tail_ratio`. The median must not grow by more than `max_p50_regression`, mean TTFT not by
    more than `max_mean_regression`, prefill throughput not fall below `min_throughput` (all shares
    of LRU's). `bounds` widens the limits of median and throughput in some cases.
    """

    attainment_loss: float = ATTAINMENT_LOSS
    tail_ratio: float = TAIL_RATIO
    max_p50_regression: float = MAX_P50_REGRESSION
    max_mean_regression: float = MAX_MEAN_REGRESSION
    min_throughput: float = MIN_THROUGHPUT

    def bounds(
        self, target: Target, p50_s: float = math.inf, utilization: float = 1.0
    ) -> dict[str, float]:
        """Return the allowed change of each figure, relative to LRU; LRU's median TTFT is `p50_s`.

        The median may grow to half of the SLO, but not above twice LRU's: a jump from 15 to 19 ms
        is no harm at an SLO of 200 ms. Prefills may take up to half of the replicas' idle time,
        where LRU keeps them busy for a share `utilization` (0-1).
        """
        loose = min(P50_OF_SLO * target.slo_s / p50_s, P50_RATIO) - 1 if p50_s else P50_RATIO - 1
        busiest = utilization + SPARE_SHARE * (1 - utilization)
        return {
            "attainment": -self.attainment_loss,
            "tel": self.tail_ratio - 1,
            target.rank_name: self.tail_ratio - 1,
            "p50": max(self.max_p50_regression, loose),
            "mean TTFT": self.max_mean_regression,
            "prefill throughput": min(self.min_throughput, utilization / busiest) - 1,
        }
