"""What `kvscope tune` found, gathered for terminal, report and dashboard."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from kvscope.core import units
from kvscope.core.kv_size import ModelKv
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Outcome
from kvscope.core.trace import Trace
from kvscope.latency import LatencyProfile
from kvscope.learning.fitted import Fit
from kvscope.policies.base import Policy
from kvscope.report.simulation import FORESEEING, value_in_words
from kvscope.tune.bootstrap import FEWEST, Gain, surely_better
from kvscope.tune.file import write_recommendation
from kvscope.tune.flags import Flags, flags
from kvscope.tune.objective import Trial, times_ms
from kvscope.tune.result import Judged, Tuning
from kvscope.tune.search import XI


@dataclass(frozen=True, slots=True)
class Assumption:
    """A value that nobody gave, and why it was taken."""

    name: str
    value: str
    why: str


@dataclass(frozen=True, slots=True)
class Tuned:
    """A tuning with the trace and the model that it is for."""

    trace: Trace
    model: ModelKv | None
    hbm_bytes: int | None
    profile: LatencyProfile
    tuning: Tuning
    assumptions: tuple[Assumption, ...] = ()

    def size(self, blocks: int) -> str:
        """A capacity in every unit that is known."""
        return units.blocks_tokens_bytes(
            blocks,
            block_size=self.trace.block_size,
            bytes_per_token=self.model.bytes_per_token if self.model else None,
        )

    def bytes_in(self, blocks: int) -> int | None:
        """The bytes of so many blocks, where a model is named."""
        return self.model.bytes_for(blocks * self.trace.block_size) if self.model else None

    def flags_at(self, trial: Trial) -> Flags:
        """The flags for a policy at its capacity."""
        return flags(trial.policy, trial.capacity_blocks * self.trace.block_size)

    def flags_for(self, other: Judged) -> Flags:
        """The flags for another policy at the capacity that is recommended."""
        blocks = self.tuning.recommended.trial.capacity_blocks
        return self.flags_at(replace(other.trial, capacity_blocks=blocks))

    @property
    def flags(self) -> Flags:
        """The flags for what is recommended."""
        return self.flags_for(self.tuning.recommended)

    def write(self, path: Path, fitted: Fit | None = None) -> None:
        """Write recommendation.toml, with what was `fitted` for a policy that has a table."""
        write_recommendation(
            path,
            self.tuning,
            trace=self.trace.name,
            block_size=self.trace.block_size,
            profile=self.profile,
            flags=self.flags,
            capacity_bytes=self.bytes_in(self.tuning.recommended.trial.capacity_blocks),
            fitted=fitted,
        )

    def next_best_for_sglang(self) -> Judged | None:
        """The first contender that is surely better than LRU and that SGLang has."""
        for one in self.tuning.contenders:
            if surely_better(one.gains, self.tuning.target) and self.flags_for(one).sglang:
                return one
        return None

    @property
    def ttft(self) -> str:
        """What the target calls TTFT: as on an idle engine, or queued."""
        return "TTFT" if self.tuning.target.view == "unloaded" else "queued TTFT"

    @property
    def target_name(self) -> str:
        """The latency that decides: p95 TTFT."""
        return f"{units.format_percentile(self.tuning.target.percentile)} {self.ttft}"

    def times_ms(self, outcome: Outcome) -> Percentiles:
        """The percentiles of TTFT in the target's view."""
        return times_ms(outcome, self.tuning.target.view)

    def called(self, policy: Policy) -> str:
        """A policy with those of its parameters that neither come with it nor from the trace."""
        usual = {one.name: one.default for one in policy.parameters}
        usual |= {name: one.value for name, one in self.tuning.found.items() if name != XI}
        told = [
            f"{name}={value_in_words(name, value)}"
            for name, value in policy.values.items()
            if value != usual[name]
        ]
        star = FORESEEING if policy.hindsight else ""
        return " ".join([policy.name + star, *told])


def change(gain: Gain) -> str:
    """A gain as the change that it is: -24.1%."""
    return _percent(-gain.value)


def interval(gain: Gain) -> str:
    """The change's interval: -30.2% to -17.9%."""
    if math.isinf(gain.low):
        return f"unknown: fewer than {FEWEST} conversations"
    return f"{_percent(-gain.high)} to {_percent(-gain.low)}"


def _percent(change: float) -> str:
    text = f"{change:+.1%}"
    return "0.0%" if text in {"+0.0%", "-0.0%"} else text
