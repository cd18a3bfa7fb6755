"""Memory below the pool: what is added to traffic whose working set is known, and why not."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from msgspec.structs import replace

from kvscope.core.runs import RunSetting
from kvscope.core.trace import Prompts
from kvscope.deployment.kv_groups import KvGroups
from kvscope.policies.lru import Lru, LruRetention
from kvscope.replay.policy_options import Variant
from kvscope.replay.sweep import serve_replay
from kvscope.replay.tier_spec import READS, WRITES
from kvscope.tuning.comparison import Harm, Window, WindowTrial
from kvscope.tuning.plan import FULL_DISK, Planner, PlanOption, TuningPlan
from kvscope.tuning.target import Target
from kvscope.tuning.tiers import (
    TierCandidate,
    TierKind,
    TierOffer,
    TierPrice,
    TierRejection,
    tier_prices,
)
from kvscope.tuning.tuner import End, Tuner, TuningOptions, TuningResult
from tests.small_traces import built, prompts
from tests.tuning.answered import BLOCK_BYTES, GROUPS, answered
from tests.tuning.examples import BLOCK, ENGINE, WINDOWS, in_turn

CONVERSATIONS, BLOCKS = 20, 20
POOL = 100  # LRU loses each of 20 prompts of 20 blocks just before it comes back
WHOLE = CONVERSATIONS * BLOCKS * BLOCK_BYTES
GIB_HOUR = TierPrice(1.0, "stated")
CHEAP_SSD: dict[TierKind, TierPrice] = {
    "dram": GIB_HOUR,
    "ssd": TierPrice(0.01, "stated", writes_per_day=1e6),
}
STORED_TWICE = (("store_threshold", (2,)), ("offload_prompt_only", (False,)))


def memory(blocks: int, below: int = 0, offload: str = "vllm@0.33") -> TierCandidate:
    """Return CPU memory of so many blocks, and files of so many below."""
    return TierCandidate(offload, blocks * BLOCK_BYTES, below * BLOCK_BYTES)


SIZES = (memory(100), memory(408), memory(800))
"""For a quarter of what comes back, for all of it, and for twice that."""


def a_trace(every_s: float = 1.0) -> Prompts:
    """Return 20 conversations in turn, a request each second."""
    trace = prompts(built(in_turn(CONVERSATIONS, 40, BLOCKS), BLOCK))
    return replace(trace, arrival_s=trace.arrival_s / trace.arrival_s[-1] * 800 * every_s)


def tuner_of(
    trace: Prompts,
    target: Target,
    *,
    setting: RunSetting = ENGINE,
    pool: int = POOL,
    ends: tuple[End, ...] = (),
    variants: tuple[Variant, ...] = (),
) -> Tuner:
    """Return the tuner of an engine."""
    options = TuningOptions(
        target=target, variants=variants, capacity_blocks=pool, ends=ends, scale_out=False
    )
    return Tuner(
        trace,
        setting,
        options,
        WINDOWS,
        lineage="given",
        progress=lambda *_: nullcontext(lambda _: None),
    )


def plan(
    slo_s: float = 0.2,
    *,
    trace: Prompts | None = None,
    percentile: float = 0.95,
    gpu_hour: float | None = None,
    gpus: int = 1,
    offer: dict[str, Any] | None = None,
    **of_tuner: Any,
) -> TuningPlan:
    """Return the plan of a trace with all sizes of memory below the pool."""
    tuner = tuner_of(trace or a_trace(), Target(slo_s, percentile, view="queued"), **of_tuner)
    result = tuner.run()
    hour = None if gpu_hour is None else gpu_hour * gpus
    stated: dict[str, Any] = {
        "candidates": SIZES,
        "block_bytes": BLOCK_BYTES,
        "gpus": gpus,
        "prices": {"dram": GIB_HOUR, "ssd": GIB_HOUR},
        "replica_hour": hour,
        "rows": 6,
        "chooses": True,
    }
    return Planner(
        tuner,
        result,
        hour,
        tiers=TierOffer(**(stated | (offer or {}))),
    ).plan()


def result_of() -> TuningResult:
    """Return the tuning of the trace without memory below."""
    return tuner_of(a_trace(), Target(0.2, view="queued")).run()


def chosen(made: TuningPlan) -> TierCandidate | None:
    """Return the tier to add."""
    return made.tier.tier if made.tier else None


def tiered(made: TuningPlan) -> dict[TierCandidate, PlanOption]:
    """Return the options with LRU and a tier."""
    return {each.tier: each for each in made.options if each.tier and each.policy.name == "lru"}


@pytest.fixture(scope="module")
def paying() -> TuningPlan:
    """Return the plan as it is."""
    return plan()


def test_the_cheapest_that_meets_the_slo(paying: TuningPlan) -> None:
    """A prompt of 320 tokens takes 330 ms, one that is loaded 26 ms: the least that fits all."""
    assert chosen(paying) == SIZES[1]
    assert paying.tier is not None
    assert paying.today.trial.target_s == pytest.approx(0.33, abs=0.05)
    assert paying.tier.trial.target_s < 0.05
    assert paying.tier.trial.outcome.token_hit_rate == pytest.approx(19 / 20, abs=0.01)
    assert paying.tier is paying.cheapest
    assert paying.tier_canary is not None
    assert paying.tier_canary.figure == "p95"


def test_figures_are_those_of_simulate(paying: TuningPlan) -> None:
    """Pool and tier, replayed over the same requests."""
    trace = a_trace()
    tuner = tuner_of(trace, Target(0.2, view="queued"))
    later = tuner.windows.later.evaluator.workload
    offer = TierOffer(candidates=SIZES, block_bytes=BLOCK_BYTES, gpus=1, prices={"dram": GIB_HOUR})
    tier = offer.below(SIZES[1])
    request = tier.request(Lru(), POOL)
    assert (request.capacity_blocks, len(request.tiers)) == (POOL + 408, 2)
    done = serve_replay(later.with_tier(tier.offload, BLOCK_BYTES), request)
    option = tiered(paying)[SIZES[1]]
    counted = slice(done.served.first, None)
    hits, tokens = done.served.hit_tokens[counted].sum(), trace.input_tokens[counted].sum()
    assert option.trial.outcome.token_hit_rate == pytest.approx(float(hits / tokens))
    assert option.trial.stored_blocks == done.served.stored_blocks > 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"slo_s": 0.5}, "met-without"),
        ({"slo_s": 0.5, "gpu_hour": 1.0}, "costs-more"),
        ({"gpu_hour": 0.3}, "too-dear"),
        ({"offer": {"candidates": SIZES[:1]}}, "no-gain"),
        ({"trace": a_trace(0.2)}, "overloaded"),
    ],
)
def test_no_tier_without_a_reason(changes: dict[str, Any], why: str) -> None:
    """An SLO met anyway, memory dearer than what it saves or than an engine, or too small."""
    if why == "overloaded":
        changes = {**changes, "offer": {"candidates": SIZES[:1]}}
    made = plan(**changes)
    assert made.tier is None
    assert made.tier_doubt is not None
    assert made.tier_doubt.why == why


def with_one_offs(rounds: int = 40) -> Prompts:
    """Return 10 conversations in turn: 800 requests.

    Between two requests of the first `rounds` is a prompt that never returns.
    """
    again = in_turn(10, 80 - rounds, BLOCKS)
    new = [
        structs.replace(request, hash_ids=[10_000 + at * BLOCKS + block for block in range(BLOCKS)])
        for at, request in enumerate(again[: rounds * 10])
    ]
    both = [each for pair in zip(again, new, strict=False) for each in pair]
    trace = prompts(built([*both, *again[len(new) :]], BLOCK))
    return replace(trace, arrival_s=trace.arrival_s / trace.arrival_s[-1] * 800)


def test_an_option_that_halves_the_size() -> None:
    """One-off prompts fill a tier, unless they are stored from the second time on.

    Outputs are no blocks here: that option changes nothing, and stays as it is.
    """
    sizes = (memory(10 * BLOCKS), memory(30 * BLOCKS))
    common: dict[str, Any] = {"trace": with_one_offs(), "percentile": 0.45}
    plain = plan(0.32, **common, offer={"candidates": sizes})
    options = {"vllm@0.33": STORED_TWICE}
    searched = plan(0.32, **common, offer={"candidates": sizes, "options": options})
    assert chosen(plain) == sizes[1]
    assert chosen(searched) == replace(sizes[0], offload="vllm@0.33:store_threshold=2")


def test_an_option_has_to_gain_on_the_validation_window() -> None:
    """One-off prompts in the training window alone are no reason for a threshold."""
    size = memory(10 * BLOCKS)
    offer = {"candidates": (size,), "options": {"vllm@0.33": STORED_TWICE}}
    made = plan(0.32, trace=with_one_offs(20), percentile=0.45, offer=offer)
    assert {*tiered(made)} == {size}


def test_copies_have_a_link_a_gpu() -> None:
    """An SSD is read by one; copies so many times as long have so much less bandwidth."""
    both = memory(400, 800)
    offer = TierOffer(candidates=(), block_bytes=BLOCK_BYTES, gpus=4, prices={"dram": GIB_HOUR})
    for copies in (1.0, 3.0):
        tiers = offer.below(both, copies).tiers
        assert [each.name for each in tiers] == ["dram", "ssd"]
        for tier, links in zip(tiers, [4, 1], strict=True):
            read = READS[tier.name].bytes_per_s * links / copies
            assert tier.read.bytes_per_s == pytest.approx(read)
            assert tier.write_bytes_per_s == pytest.approx(WRITES[tier.name] * links / copies)


def test_files_below_cpu_memory() -> None:
    """Memory for 5 prompts loses all 20; with files below it is cheaper than memory for all."""
    sizes = (memory(100), memory(100, 800), memory(408))
    made = plan(offer={"candidates": sizes, "prices": CHEAP_SSD})
    assert chosen(made) == sizes[1]
    assert made.tier is not None
    option, other = made.tier, tiered(made)[sizes[0]]
    assert option.full_s == pytest.approx(800 * BLOCK_BYTES / option.written_bytes_s)
    assert (other.full_s, made.today.full_s) == (None, None)
    assert option.trial.outcome.token_hit_rate == pytest.approx(19 / 20, abs=0.01)


def test_files_that_fill_the_ssd_may_not_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is full they are no more than CPU memory whose misses are looked up in vain."""
    eligible = "kvscope.tuning.plan.eligible_at"
    monkeypatch.setattr(eligible, lambda end, *_: end is not FULL_DISK)
    made = plan(offer={"candidates": (memory(100, 800),), "prices": CHEAP_SSD})
    assert made.tier is None
    assert made.tier_doubt is not None
    assert (made.tier_doubt.why, made.tier_doubt.ends) == ("uncertain", (FULL_DISK.name,))


def test_reads_that_drop_each_other() -> None:
    """Memory for one prompt, and several at once: vLLM would never start some requests."""
    candidates = (memory(22), memory(22, 800))
    offer = {"candidates": candidates, "prices": CHEAP_SSD}
    made = plan(trace=a_trace(0.05), offer=offer)
    (rejected,) = made.rejected
    assert isinstance(rejected, TierRejection)
    assert rejected.candidate == candidates[1]
    assert "never start" in rejected.reason
    assert candidates[1] not in tiered(made)


def test_memory_that_is_there_costs_nothing() -> None:
    """Among sizes that are all free, the smallest that meets the SLO."""
    free = structs.replace(GIB_HOUR, gib_hour=0.0)
    made = plan(gpu_hour=1.0, offer={"prices": {"dram": free, "ssd": GIB_HOUR}})
    assert chosen(made) == SIZES[1]
    assert made.tier is not None
    assert made.tier.price_hour == made.today.price_hour == 1.0


@pytest.mark.parametrize("broken", [{"harms": (Harm("p50", 0.3, 0.25),)}, {"keeps_up": False}])
def test_no_limit_is_broken_on_held_out_requests(
    monkeypatch: pytest.MonkeyPatch, broken: dict[str, Any]
) -> None:
    """However much the tail gains there."""
    compare = Window.compare

    def on_held_out(self: Window, *given: Any) -> WindowTrial:
        trial, share = compare(self, *given), self.evaluator.workload.setting.definition.warmup
        return replace(trial, **broken) if share > 0.7 and given[-1] is not None else trial

    monkeypatch.setattr(Window, "compare", on_held_out)
    assert plan().tier is None


def test_the_held_out_window_may_reject() -> None:
    """Where nothing comes back any more, a tier that gained before does not."""
    again = in_turn(CONVERSATIONS, 40, BLOCKS)
    new = [
        structs.replace(request, hash_ids=[10_000 + at * BLOCKS + block for block in range(BLOCKS)])
        for at, request in enumerate(again)
    ]
    trace = prompts(built([*again[:600], *new[600:]], BLOCK))
    trace = replace(trace, arrival_s=trace.arrival_s / trace.arrival_s[-1] * 800)
    made = plan(trace=trace)
    validated = tiered(made)[SIZES[1]].judged.validation
    assert validated.target_s < 0.05
    assert not tiered(made)[SIZES[1]].judged.meets(Target(0.2, view="queued"))
    assert made.cheapest is None


def test_another_engine_has_all_its_gpus() -> None:
    """0.4 GiB at 1 an hour: more than one GPU at 0.3, less than two."""
    assert [chosen(plan(gpu_hour=0.3, gpus=gpus)) is None for gpus in (1, 2)] == [True, False]


def test_gpu_time_may_pay_where_the_slo_is_met() -> None:
    """0.3 of a GPU at 2 an hour is worth more than 0.4 GiB at 1; the net counts, not the size."""
    made = plan(0.5, gpu_hour=2.0)
    assert chosen(made) == SIZES[1]
    assert made.tier is not None
    freed = made.today.trial.utilization - made.tier.trial.utilization
    assert made.tier.saves_hour == pytest.approx(2 * freed)
    assert made.tier.price_hour is not None
    assert made.tier.saves_hour is not None
    assert made.tier.saves_hour > made.tier.price_hour - 2.0 > 0


FEW, ALL = 26 * BLOCKS, 62 * BLOCKS  # blocks for conversations that come back soon, and for all


def sooner_and_later() -> Prompts:
    """Return 800 requests, four at a time: half of 10 conversations in turn, half of 40."""
    soon, late = in_turn(10, 40, BLOCKS), in_turn(40, 10, BLOCKS)
    moved = [
        structs.replace(request, hash_ids=[100_000 + block for block in request.hash_ids or []])
        for request in late
    ]
    trace = prompts(built([each for pair in zip(soon, moved, strict=True) for each in pair], BLOCK))
    return replace(trace, arrival_s=np.arange(len(trace.leaf)) // 4 * 4.0)


@pytest.mark.parametrize(
    ("gpu_hour", "blocks"),
    [
        (None, ALL),
        (1.5, ALL),  # neither pays: 0.23 and 0.47 are saved for 0.51 and 1.21
        (3.5, FEW),  # 0.54 and 1.09
        (4.2, ALL),  # 0.65 and 1.30: the lower percentile, though it saves less
    ],
)
def test_beyond_the_slo_memory_has_to_pay(gpu_hour: float | None, blocks: int) -> None:
    """Of sizes that all miss the SLO, those that save their price go before the fastest."""
    offer = {"candidates": (memory(FEW), memory(ALL))}
    made = plan(0.001, trace=sooner_and_later(), gpu_hour=gpu_hour, offer=offer)
    assert chosen(made) == memory(blocks)


def test_gpu_time_has_to_pay_on_held_out_requests() -> None:
    """At a third of the arrival rate a third is saved: 0.2 an hour for 0.4."""
    trace = a_trace()
    last = trace.arrival_s[600]
    arrival_s = trace.arrival_s + 2 * (trace.arrival_s - last).clip(0)
    made = plan(0.5, trace=replace(trace, arrival_s=arrival_s), gpu_hour=2.0)
    assert made.tier_doubt is not None
    assert made.tier_doubt.why == "costs-more"


@pytest.mark.parametrize("slower", [False, True])
def test_what_is_not_known_exactly_may_reject(
    monkeypatch: pytest.MonkeyPatch, slower: bool
) -> None:
    """With a prefill half as long half is saved; copies slower than computing do harm."""
    if slower:
        slow = replace(READS["dram"], bytes_per_s=BLOCK_BYTES * 100.0)  # 20 blocks in 0.2 s
        monkeypatch.setitem(READS, "dram", slow)
        made = plan(0.25)
    else:
        made = plan(0.5, gpu_hour=2.0, ends=(End("prefill half as long", 0.5),))
    assert made.tier is None
    assert made.tier_doubt is not None
    assert made.tier_doubt.why == "uncertain"
    named = "copies 3x as long" if slower else "prefill half as long"
    assert made.tier_doubt.ends == (named,)


def test_a_pool_for_everything_needs_no_tier_and_has_no_harm_by_one() -> None:
    """At the end with the largest pool both are alike."""
    ample = End("the largest pool and prefill 0.5x as long", 0.5, 1000)
    assert chosen(plan(ends=(ample,))) == SIZES[1]


def test_writes_wear_an_ssd_out() -> None:
    """Within its rating it costs its size, beyond so many times as much; CPU memory never wears."""
    price = TierPrice(2.0, "stated", writes_per_day=1.0)
    assert price.hour(2**30) == 2.0
    assert price.hour(2**30, 2**30 / 86_400) == pytest.approx(2.0)
    assert price.hour(2**30, 3 * 2**30 / 86_400) == pytest.approx(6.0)
    assert tier_prices().dram.hour(2**30, 1e12) == tier_prices().dram.gib_hour


def test_an_interval_and_a_tier_do_more_together() -> None:
    """Answers are kept at intervals alone, and hit from a tier where outputs are stored, too."""
    trace = answered()
    offer = {
        "candidates": (memory(2_000),),
        "options": {"vllm@0.33": (("offload_prompt_only", (False,)),)},
        "policies": tuple(LruRetention({"retention_tokens": each}) for each in (64.0, 4_096.0)),
        "groups": KvGroups.parse(GROUPS),
    }
    made = plan(0.2, trace=trace, setting=replace(ENGINE, kv_groups=GROUPS), pool=400, offer=offer)
    with_interval = {
        each.tier.offload: each.trial.target_s
        for each in made.options
        if each.tier and each.policy.name == "lru-retention"
    }
    stored = with_interval["vllm@0.33:offload_prompt_only=false"]
    assert stored < min(each.trial.target_s for each in tiered(made).values())
    assert made.tier is not None
    assert made.tier.policy.name == "lru-retention"
    assert made.tier.trial.target_s == stored


def test_wrong_hits_are_never_searched() -> None:
    """Windows of smaller blocks, all of them kept, with outputs stored: see docs/offload.md."""
    every = LruRetention({"retention_tokens": float("inf")})
    some = LruRetention({"retention_tokens": 64.0})
    stored = memory(100, offload="vllm@0.33:offload_prompt_only=false")
    for groups, safe in ((GROUPS, True), ("sliding/16/64/1+full/32/0/1@0", False)):
        offer = TierOffer(
            candidates=(),
            block_bytes=1,
            gpus=1,
            prices={"dram": GIB_HOUR},
            groups=KvGroups.parse(groups),
        )
        assert offer.runs(stored, every) is safe
        assert offer.runs(stored, some)
        assert offer.runs(memory(100), every)
