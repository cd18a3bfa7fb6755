"""Tiers below a hybrid model's pool, whose retention interval alone may do what a tier does."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from msgspec.structs import replace

from kvscope.app.tune_tiers import TierRecommendation
from kvscope.core.trace import Prompts
from kvscope.policies.lru_retention import retaining
from kvscope.replay.sweep import make_run, tier_request
from kvscope.replay.workload import Workload
from kvscope.report.tune_tiers import front_chart, in_words, sections
from kvscope.tuning.file import (
    EngineTable,
    read_recommendation,
    read_recommendation_table,
    write_tier_recommendation,
)
from kvscope.tuning.tier_prices import TierPrice
from kvscope.tuning.tier_trial import TierCandidate, TierPlan, TierWindow
from kvscope.tuning.tiers import TierTuning, tune_tiers
from kvscope.tuning.trial import Evaluator
from kvscope.tuning.tuner import End
from tests.small_traces import built, prompts
from tests.tuning.answered import (
    ALL,
    ANSWER,
    BLOCK_BYTES,
    CONVERSATIONS,
    EVERY_FOUR,
    GROUPS,
    PROMPT,
    answered,
    hybrid_plan,
    turns_of,
)
from tests.tuning.examples import BLOCK, PROFILE, WINDOWS, in_turn

AMPLE, SMALL = 20_000, 100  # blocks: for all, and for less than what comes between two turns
OUTPUTS = "vllm@0.33:offload_prompt_only=false"
CHEAP = {"dram": TierPrice(0.01, "stated"), "ssd": TierPrice(0.01, "stated")}


def tuned(made: TierPlan) -> TierTuning:
    """Return its tuning."""
    return tune_tiers(made, lambda _: nullcontext(lambda _: None))


def as_recommended(made: TierPlan, result: TierTuning) -> TierRecommendation:
    """Return the tuning as that of a deployment on one GPU."""
    unused: Any = None
    deployment: Any = SimpleNamespace(tp=1, engine="vllm@0.33", summary="1 x h100")
    return TierRecommendation(unused, unused, deployment, made, result)


@pytest.fixture(scope="module")
def free() -> TierTuning:
    """Return the tuning of an ample pool."""
    return tuned(hybrid_plan())


@pytest.fixture(scope="module")
def stored() -> TierTuning:
    """Return the tuning of a small pool."""
    return tuned(hybrid_plan(pool_blocks=SMALL))


def test_the_interval_alone_meets_the_slo(free: TierTuning) -> None:
    """So no tier is credited with it: 18 tokens of the second turn are computed, not 288."""
    assert (free.verdict, free.why, free.recommended) == ("set-interval", "met-without", None)
    assert free.interval is not None
    assert free.interval.kept
    today, best = free.today[1], free.best
    assert (today.interval, best.interval, best.candidate) == (0, EVERY_FOUR, None)
    assert not today.trial.meets(hybrid_plan().target)
    assert best.trial.meets(hybrid_plan().target)
    assert best.prefill_share < today.prefill_share / 3
    assert best.cost_hour == 0
    assert free.gains["p95"].significant
    assert free.gains == best.trial.gains
    assert free.canary is not None
    assert free.canary.figure == "p95"
    tiers = [trial for trial in free.explored if trial.candidate]
    assert max(trial.tier_hit_rate for trial in tiers) == 0


def test_the_answer_names_the_interval(free: TierTuning) -> None:
    """With the flag, and what it does; the chart begins at that pool."""
    recommended = as_recommended(hybrid_plan(), free)
    words = in_words(recommended)
    assert words[0].startswith(
        "Does offloading pay? No: keep no CPU tier, but set --prefix-cache-retention-interval 64,"
        " which costs nothing: on held-out requests it takes p95 TTFT from 298 ms to 74 ms (SLO 200"
        " ms, met; p95 -75"
    )
    assert words[1].startswith("The SLO is met without: p95 TTFT 74 ms.")
    assert recommended.launch is not None
    assert recommended.launch.arguments == ("--prefix-cache-retention-interval", "64")
    screen = {section.title: section for section in sections(recommended, one_screen=True)}
    assert "with and without the interval in turn" in str(screen["To set"])
    marks = {mark.name: list(mark.text) for mark in front_chart(recommended).data}
    assert marks["Pareto front"] == ["the pool alone with retention interval 64"]


def test_a_tier_and_an_interval_do_more_together(stored: TierTuning) -> None:
    """Without outputs in it, a tier holds prompts alone; without an interval no way to hit them."""
    assert stored.verdict == "pays"
    assert stored.interval is None
    best = stored.best
    assert best.candidate == TierCandidate(
        OUTPUTS, "dram", 2_000 * BLOCK_BYTES, interval=EVERY_FOUR
    )
    hits = {
        (trial.candidate.offload, trial.interval): trial.tier_hit_rate
        for trial in stored.explored
        if trial.candidate and trial.candidate.size_bytes == 2_000 * BLOCK_BYTES
    }
    second = PROMPT + ANSWER
    whole = 2 * PROMPT + ANSWER + 1  # blocks of both prompts
    assert hits["vllm@0.33", 0] == pytest.approx((PROMPT - 1) / whole, abs=0.05)
    assert hits["vllm@0.33", EVERY_FOUR] < 0.2
    assert hits[OUTPUTS, EVERY_FOUR] == pytest.approx(second / whole, abs=0.01)
    alone = [trial for trial in stored.explored if trial.candidate is None]
    assert [trial.interval for trial in alone] == [0, EVERY_FOUR, ALL]
    words = in_words(as_recommended(hybrid_plan(), stored))
    assert "(vllm@0.33:offload_prompt_only=false, retention interval 64)" in words[0]
    launch = as_recommended(hybrid_plan(), stored).launch
    assert launch is not None
    assert launch.arguments[-2:] == ("--prefix-cache-retention-interval", "64")


def test_figures_are_those_of_simulate(stored: TierTuning) -> None:
    """The same groups, pool, tier and interval as `kvscope simulate --tiers … --offload`."""
    made, best = hybrid_plan(pool_blocks=SMALL), stored.best
    *_, held_out = made.cut(made.prompts)[1]
    setting = replace(
        held_out.setting,
        tiers=f"hbm={SMALL}blocks,dram=2000blocks",
        tier_mode=OUTPUTS,
        block_bytes=BLOCK_BYTES,
    )
    workload = Workload(made.prompts, setting, WINDOWS)
    run = make_run(workload, tier_request(workload, retaining(EVERY_FOUR), {}))
    assert run.outcome == best.trial.outcome
    assert run.tiers[1].token_hit_rate == best.tier_hit_rate


def test_a_tier_earns_nothing_that_its_interval_does_alone() -> None:
    """It is better than today's pool, and not better than the pool with its interval."""
    made = hybrid_plan()
    made = replace(made, gpu_hour=1.0, prices={"dram": TierPrice(1e-6, "stated")})
    workload = made.cut(made.prompts)[1][1]
    window = TierWindow(made, Evaluator(workload, made.target))
    candidate = replace(made.candidates[0], interval=EVERY_FOUR)
    trial = window.of(candidate)
    assert trial.trial.recommendable(made.target)
    assert made.net_hour(window.baseline, trial) > 0
    assert not window.earns(trial)
    assert window.net_hour(trial) <= 0
    small = TierWindow(replace(made, pool_blocks=SMALL), Evaluator(workload, made.target))
    stored = replace(made.candidates[1], offload=OUTPUTS, interval=EVERY_FOUR)
    assert small.earns(small.of(stored))


def test_an_slo_that_is_met_leaves_gpu_time_to_free() -> None:
    """The interval that costs nothing frees it; no tier is bought for that."""
    result = tuned(hybrid_plan(0.5, gpu_hour=10.0, prices=CHEAP))
    assert (result.verdict, result.why) == ("set-interval", "costs-more")
    assert result.today[1].trial.meets(hybrid_plan(0.5).target)
    # without other intervals, no tier of this pool frees anything either
    assert tuned(hybrid_plan(0.5, gpu_hour=10.0, prices=CHEAP, intervals=())).verdict == "keep-none"


def test_what_frees_next_to_nothing_is_no_change() -> None:
    """A request every 100 s keeps the GPU idle; an SLO that is met is no reason then."""
    made = hybrid_plan(0.5)
    trace = replace(made.prompts, arrival_s=made.prompts.arrival_s * 50)
    result = tuned(replace(made, prompts=trace))
    assert (result.verdict, result.interval) == ("keep-none", None)


def shifting() -> Prompts:
    """Return answered conversations, and prompts in turn from the held-out requests on.

    36 prompts fit into 1,000 blocks, but not with all their windows.
    """
    first = turns_of(CONVERSATIONS * 3 // 4)
    later = [
        structs.replace(
            each,
            arrival_s=(len(first) + at) * 2.0,
            hash_ids=[10**6 + block for block in each.hash_ids or ()],
            chat_id=10**6 + at,
            parent_chat_id=-1,
        )
        for at, each in enumerate(in_turn(36, 5, 20)[: len(first) // 3])
    ]
    return prompts(built([*first, *later], BLOCK))


def test_held_out_requests_may_reject_an_interval() -> None:
    """Where all windows push prompts out that come back, it stays as it is."""
    result = tuned(hybrid_plan(prompts=shifting(), pool_blocks=1_000))
    assert result.interval is not None
    assert not result.interval.kept
    chosen, judged = result.interval.choice
    assert chosen.trial.recommendable(hybrid_plan().target)
    assert judged.trial.harms
    assert result.best.interval == 0
    assert result.verdict == "keep-none"
    said = " ".join(in_words(as_recommended(hybrid_plan(), result)))
    assert "of the pool alone was better on the validation window, but not on held-out" in said


def test_an_interval_holds_at_the_ends() -> None:
    """A pool that is smaller than believed loses to windows what the default hits."""
    for blocks, kept, verdict in ((600, False, "keep-none"), (2_000, True, "set-interval")):
        result = tuned(hybrid_plan(ends=(End("the smallest pool", 1.0, blocks),)))
        assert result.interval is not None
        assert (result.interval.kept, result.verdict) == (kept, verdict)


def test_wrong_hits_are_never_searched() -> None:
    """Windows of smaller blocks, all of them kept, with outputs stored: see offload-hybrid.md."""
    unlike = "sliding/16/64/1+full/32/0/1@0"
    for groups, safe in ((GROUPS, True), (unlike, False)):
        made = hybrid_plan()
        made = replace(made, setting=replace(made.setting, kv_groups=groups))
        outputs = replace(made.candidates[0], offload=OUTPUTS, interval=ALL)
        assert made.safe(outputs) is safe
        assert made.safe(replace(outputs, interval=EVERY_FOUR))
        assert made.safe(replace(outputs, offload="vllm@0.33"))
        stated = replace(made, candidates=(replace(outputs, interval=0.0),))
        assert stated.keeping(ALL).candidates[0].interval == (ALL if safe else 0.0)
        result = tuned(replace(made, pool_blocks=SMALL, candidates=made.candidates[1:]))
        tried = [each.candidate for each in result.explored if each.candidate]
        both = [each for each in tried if each.offload == OUTPUTS and np.isinf(each.interval)]
        assert bool(both) is safe


def test_the_conversations_are_answered_in_time() -> None:
    """Each answer is there before the turn that follows, as the figures above take for granted."""
    trace = answered()
    assert len(trace.leaf) == 2 * CONVERSATIONS
    assert np.all(np.diff(trace.arrival_s) > 0)


def between_others() -> Prompts:
    """Return answered conversations, and between two turns one of 60 prompts that come back."""
    mixed = []
    for at, (own, other) in enumerate(zip(turns_of(225), in_turn(60, 8, 20), strict=False)):
        ids = [10**6 + block for block in other.hash_ids or ()]
        names = {"chat_id": 10**6 + at, "parent_chat_id": -1, "hash_ids": ids}
        mixed.append(structs.replace(own, arrival_s=at * 4.0))
        mixed.append(structs.replace(other, arrival_s=at * 4.0 + 2.0, **names))
    return prompts(built(mixed, BLOCK))


def both() -> TierPlan:
    """Return what is tuned for them: a pool that is too small for the prompts that come back."""
    return hybrid_plan(
        0.5,
        prompts=between_others(),
        pool_blocks=2_000,
        candidates=(TierCandidate("vllm@0.33", "dram", 6_000 * BLOCK_BYTES),),
        gpu_hour=10.0,
        prices=CHEAP,
    )


@pytest.fixture(scope="module")
def beyond() -> TierTuning:
    """Return its tuning."""
    return tuned(both())


def test_a_tier_pays_beyond_the_interval(beyond: TierTuning) -> None:
    """The interval has the answers hit, and a tier the prompts that the pool has no room for."""
    today, alone, best = beyond.today[1], beyond.baseline[1], beyond.best
    assert (beyond.verdict, alone.interval, best.interval) == ("pays", EVERY_FOUR, EVERY_FOUR)
    freed = [each.prefill_share for each in (today, alone, best)]
    assert freed == pytest.approx([0.132, 0.095, 0.019], abs=0.001)
    words = in_words(as_recommended(both(), beyond))
    assert "frees 7.7% of the GPU's time (worth 0.767 an hour), for 0.059 an hour" in words[0]
    assert words[1].startswith("The retention interval 64 of the pool alone, which costs")
    assert "frees 3.7% of the GPU's time" in words[1]


@pytest.mark.parametrize("which", ["free", "stored", "beyond"])
def test_the_file_has_the_interval(
    free: TierTuning, stored: TierTuning, beyond: TierTuning, tmp_path: Path, which: str
) -> None:
    """In `[policy]`; figures are of today's pool, of that with the interval, and of the best."""
    result = {"free": free, "stored": stored, "beyond": beyond}[which]
    path = tmp_path / "recommendation.toml"
    where = EngineTable("1 x h100", "vllm@0.33", 1, 8, 512, GROUPS)
    write_tier_recommendation(
        path, result, hybrid_plan(), trace="t", profile=PROFILE, flags={}, deployment=where
    )
    read, table = read_recommendation(path), read_recommendation_table(path)
    assert (read.verdict, read.deployment) == (result.verdict, where)
    assert read.policy.name == "lru-retention"
    assert read.policy.values["retention_tokens"] == EVERY_FOUR
    assert (read.tier is None) == (which == "free")
    expected = {"lru": result.today[1], "interval": result.baseline[1], "recommended": result.best}
    if which != "beyond":
        del expected["interval"]
    assert {name: figures["p95_ms"] for name, figures in table.expected.items()} == {
        name: each.trial.times_ms.p95 for name, each in expected.items()
    }
    assert set(table.gain) == set(result.gains)


def test_states_are_tuned_as_windows_are() -> None:
    """A block of a state is worth one window: the same two answers."""
    made = hybrid_plan(options={"vllm@0.33": (("offload_prompt_only", (False,)),)})
    setting = replace(made.setting, kv_groups="linear/16/0/1+full/16/0/1@0")
    free = tuned(replace(made, setting=setting))
    assert (free.verdict, free.best.interval) == ("set-interval", EVERY_FOUR)
    stored = tuned(replace(made, setting=setting, pool_blocks=SMALL))
    assert stored.verdict == "pays"
    assert stored.best.candidate is not None
    assert (stored.best.candidate.offload, stored.best.interval) == (OUTPUTS, EVERY_FOUR)
