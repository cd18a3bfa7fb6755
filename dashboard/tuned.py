"""What the page Recommendation runs: `kvscope tune` with its defaults, for an SLO."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import prepared
from job import Job

from kvscope.characterize.windows import round_windows
from kvscope.core.hits import standard
from kvscope.core.kv_size import ModelKv
from kvscope.core.trace import Trace
from kvscope.latency import LatencyProfile
from kvscope.replay.policy_options import CONTENDERS, parse_policies, parse_variants
from kvscope.replay.workload import setting_of
from kvscope.report.assumed import assumptions
from kvscope.report.tuning import Tuned
from kvscope.tune.objective import Question, Target
from kvscope.tune.search import Stopped
from kvscope.tune.tuner import tune


@dataclass(frozen=True, slots=True)
class Asking:
    """What is asked: the target, and what else the options of `kvscope tune` would say."""

    trace: Trace
    target: Target
    capacity_blocks: int | None
    model: ModelKv | None
    hbm_bytes: int | None
    profile: LatencyProfile


def recommend(job: Job, asking: Asking) -> Tuned | None:
    """The procedure; None where it was stopped."""
    trace, target = asking.trace, asking.target
    question = Question(
        target=target,
        variants=tuple(parse_variants(parse_policies(CONTENDERS), [])),
        capacity_blocks=asking.capacity_blocks,
    )
    setting = setting_of(standard(), asking.profile, slo_s=target.slo_s)
    try:
        tuning = tune(
            prepared.lru_for(job, trace).prompts,
            setting,
            question,
            round_windows(trace),
            lineage=trace.lineage,
            progress=job.steps,
            stop=job.stop,
        )
    except Stopped:
        return None
    found = Tuned(trace, asking.model, asking.hbm_bytes, asking.profile, tuning)
    given: Mapping[str, object] = {
        "--latency": asking.profile.name,
        "--model": asking.model,
        "--capacity": asking.capacity_blocks,
        "--percentile": target.percentile,
        "--warmup, --judge": None,
        "--policies": None,
    }
    return replace(found, assumptions=assumptions(found, given, CONTENDERS))


def as_file(found: Tuned) -> str:
    """The text of recommendation.toml; none of `CONTENDERS` has a table that goes with it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recommendation.toml"
        found.write(path)
        return path.read_text(encoding="utf-8")
