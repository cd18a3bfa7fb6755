"""Tiers below the pool: what is chosen of traffic whose working set is known, and what is not."""

from __future__ import annotations

import json
from contextlib import nullcontext
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from msgspec.structs import replace

from kvscope.app.tune_tiers import TierRecommendation
from kvscope.core.errors import Stopped, UsageError
from kvscope.core.trace import Prompts
from kvscope.policies.lru import Lru
from kvscope.replay.sweep import make_run, tier_request
from kvscope.replay.tier_spec import READS, WRITES
from kvscope.replay.workload import Workload
from kvscope.report.tune_tiers import front_chart, in_words
from kvscope.tuning.comparison import Harm, Window, WindowTrial
from kvscope.tuning.split import split_windows
from kvscope.tuning.target import Limits, Target
from kvscope.tuning.tier_prices import TierPrice, tier_prices
from kvscope.tuning.tier_search import gains
from kvscope.tuning.tier_trial import (
    TierCandidate,
    TierPlan,
    TierTrial,
    TierWindow,
    pareto_front,
    tiers_of,
)
from kvscope.tuning.tiers import FULL, TierTuning, tune_tiers
from kvscope.tuning.tuner import End
from kvscope.vllm_plugin.settings import read_settings
from kvscope.vllm_sim.offload_spec import OffloadSpec
from tests.small_traces import built, prompts
from tests.tuning.examples import BLOCK, ENGINE, PROFILE, WINDOWS, in_turn

CONVERSATIONS, BLOCKS = 20, 20
POOL = 100  # LRU loses each of 20 prompts of 20 blocks just before it comes back
BLOCK_BYTES = 2**20
WHOLE = CONVERSATIONS * BLOCKS * BLOCK_BYTES
GIB_HOUR = TierPrice(1.0, "stated")


def a_trace(every_s: float = 1.0) -> Prompts:
    """Return 20 conversations in turn, a request each second."""
    trace = prompts(built(in_turn(CONVERSATIONS, 40, BLOCKS), BLOCK))
    return replace(trace, arrival_s=trace.arrival_s / trace.arrival_s[-1] * 800 * every_s)


def plan(slo_s: float = 0.2, **changes: Any) -> TierPlan:
    """Return what is tuned: memory for a quarter of what comes back, all of it, and twice that."""
    made = TierPlan(
        prompts=a_trace(),
        lineage="given",
        setting=ENGINE,
        windows=WINDOWS,
        shares=(0.2, 0.25, 0.25),
        target=Target(slo_s, 0.95, view="queued"),
        limits=Limits(),
        pool_blocks=POOL,
        block_bytes=BLOCK_BYTES,
        gpus=1,
        candidates=tuple(
            TierCandidate(offload, "dram", size)
            for offload in ("vllm@0.33", "vllm@0.33:store_threshold=2")
            for size in (WHOLE // 4, WHOLE + 2**23, 2 * WHOLE)
        ),
        prices={"dram": GIB_HOUR, "ssd": GIB_HOUR},
        gpu_hour=None,
    )
    return replace(made, **changes)


def tuned(made: TierPlan) -> TierTuning:
    """Return its tuning."""
    return tune_tiers(made, lambda _: nullcontext(lambda _: None))


def as_recommended(made: TierPlan, result: TierTuning) -> TierRecommendation:
    """Return the tuning as that of a deployment on one GPU."""
    unused: Any = None
    deployment: Any = SimpleNamespace(tp=1)
    return TierRecommendation(unused, unused, deployment, made, result)


@pytest.fixture(scope="module")
def paying() -> TierTuning:
    """Return the tuning of the plan as it is."""
    return tuned(plan())


def test_the_cheapest_that_meets_the_slo(paying: TierTuning) -> None:
    """A prompt of 320 tokens takes 330 ms, one that is loaded 26 ms: the least that fits all."""
    assert paying.verdict == "pays"
    alone, chosen = paying.baseline[1], paying.recommended
    assert chosen is not None
    assert chosen.candidate is not None
    assert chosen.candidate.size_bytes == WHOLE + 2**23
    assert paying.least is not None
    assert paying.least.candidate == chosen.candidate
    assert not alone.trial.meets(plan().target)
    assert chosen.trial.meets(plan().target)
    assert chosen.tier_hit_rate == pytest.approx(19 / 20)
    assert chosen.cost_hour == pytest.approx((WHOLE + 2**23) / 2**30)
    # 0.01 s and 0.32 s a prompt; 0.01 s and 0.016 s with 19 blocks loaded; one each second
    assert alone.prefill_share == pytest.approx(0.33, rel=0.02)
    assert chosen.prefill_share == pytest.approx(0.026, rel=0.02)
    assert [end.holds for end in paying.ends] == [True]


def test_figures_are_those_of_simulate(paying: TierTuning) -> None:
    """The same engine, pool and tier as `kvscope simulate --tiers … --offload` replays."""
    made, chosen = plan(), paying.recommended
    assert chosen is not None
    assert chosen.candidate is not None
    size = chosen.candidate.size_bytes
    *_, held_out = made.cut(made.prompts)[1]
    setting = replace(
        held_out.setting,
        tiers=f"hbm={POOL}blocks,dram={size // BLOCK_BYTES}blocks",
        tier_mode=chosen.candidate.offload,
        block_bytes=BLOCK_BYTES,
    )
    workload = Workload(made.prompts, setting, WINDOWS)
    run = make_run(workload, tier_request(workload, Lru(), {}))
    outcome = chosen.trial.outcome
    assert run.outcome == outcome
    assert run.tiers[1].token_hit_rate == chosen.tier_hit_rate


def test_the_chart_has_one_unit(paying: TierTuning) -> None:
    """The SLO is a level in seconds, as the percentiles are."""
    recommended = as_recommended(plan(), paying)
    assert paying.choice is not None
    assert "an hour; no smaller size meets it." in in_words(recommended)[0].replace(
        " in the currency of your prices", ""
    )
    chart = front_chart(recommended)
    assert (chart.layout.yaxis.type, chart.layout.shapes[0].y0) == ("log", plan().target.slo_s)
    marks = {trace.name: list(zip(trace.x, trace.y, strict=True)) for trace in chart.data}
    chosen = paying.choice[0]
    assert marks["chosen"] == [(chosen.cost_hour, chosen.trial.target_s)]
    assert set(marks["chosen"]) < set(marks["Pareto front"]) < set(marks["compared"])


def test_the_front_has_no_dearer_equal(paying: TierTuning) -> None:
    """Twice the memory gains nothing, a quarter of it neither."""
    front = [trial.candidate and trial.candidate.size_bytes for trial in paying.front]
    assert front == [None, WHOLE + 2**23]
    assert pareto_front((*paying.front, *paying.front)) == paying.front
    assert [trial.candidate and trial.candidate.size_bytes for trial in paying.sizes] == [
        WHOLE // 4,
        WHOLE + 2**23,
        2 * WHOLE,
    ]


def test_the_shares_cut_the_trace(paying: TierTuning) -> None:
    """Windows are those of tune."""
    assert paying.split == split_windows(plan().prompts, 0.2, 0.25, 0.25, 0.95)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"slo_s": 0.5}, "met-without"),
        ({"slo_s": 0.5, "gpu_hour": 1.0}, "costs-more"),
        ({"gpu_hour": 0.3}, "too-dear"),
        ({"candidates": (TierCandidate("vllm@0.33", "dram", WHOLE // 4),)}, "no-gain"),
    ],
)
def test_no_tier_without_a_reason(changes: dict[str, Any], why: str) -> None:
    """An SLO met anyway, memory dearer than what it saves or than an engine, or too small."""
    result = tuned(plan(**changes))
    assert (result.verdict, result.why, result.recommended) == ("keep-none", why, None)
    assert result.front[0].candidate is None


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


STORED_TWICE = (("store_threshold", (2,)), ("offload_prompt_only", (False,)))


def test_an_option_that_halves_the_size() -> None:
    """One-off prompts fill a tier, unless they are stored from the second time on.

    Outputs are no blocks here: that option changes nothing, and stays as it is.
    """
    half = 10 * BLOCKS * BLOCK_BYTES
    sizes = tuple(TierCandidate("vllm@0.33", "dram", size) for size in (half, half * 3))
    options = {"vllm@0.33": STORED_TWICE}
    target = Target(0.32, 0.45, view="queued")
    made = plan(prompts=with_one_offs(), candidates=sizes, target=target)
    plain, searched = tuned(made), tuned(replace(made, options=options))
    chosen = [each.recommended and each.recommended.candidate for each in (plain, searched)]
    assert chosen == [sizes[1], replace(sizes[0], offload="vllm@0.33:store_threshold=2")]
    tried = {trial.candidate.offload for trial in searched.explored if trial.candidate}
    assert tried == {
        "vllm@0.33",
        "vllm@0.33:store_threshold=2",
        "vllm@0.33:offload_prompt_only=false:store_threshold=2",
        "vllm@0.33:offload_prompt_only=false",
    }
    assert {trial.candidate for trial in searched.sizes} == {
        replace(each, offload="vllm@0.33:store_threshold=2") for each in sizes
    }


def test_an_option_has_to_gain_on_the_validation_window() -> None:
    """One-off prompts in the training window alone are no reason for a threshold."""
    size = TierCandidate("vllm@0.33", "dram", 10 * BLOCKS * BLOCK_BYTES)
    target = Target(0.32, 0.45, view="queued")
    made = plan(prompts=with_one_offs(20), candidates=(size,), target=target)
    result = tuned(replace(made, options={"vllm@0.33": STORED_TWICE}))
    assert "vllm@0.33:store_threshold=2" in {
        trial.candidate.offload for trial in result.compared if trial.candidate
    }
    assert result.choice is not None
    assert result.choice[0].candidate == size


def test_a_size_that_training_did_not_lead_to() -> None:
    """Half of the conversations end before the training window does: then half the size will do."""
    all_of_them, half_of_them = in_turn(20, 18, BLOCKS), in_turn(10, 44, BLOCKS)
    later = [
        structs.replace(request, arrival_s=360.0 + at, chat_id=1000 + at, parent_chat_id=-1)
        for at, request in enumerate(half_of_them)
    ]
    trace = prompts(built([*all_of_them, *later], BLOCK))
    half = TierCandidate("vllm@0.33", "dram", 12 * BLOCKS * BLOCK_BYTES)
    result = tuned(plan(prompts=trace, candidates=(half, plan().candidates[1])))
    assert result.choice is not None
    assert result.choice[0].candidate == half


def test_copies_have_a_link_a_gpu() -> None:
    """An SSD is read by one; copies so many times as long have so much less bandwidth."""
    ssd = TierCandidate("lmcache", "ssd", WHOLE)
    both = TierCandidate("vllm@0.33", "dram", WHOLE, 2 * WHOLE)
    for candidate, links in ((ssd, [1]), (both, [4, 1])):
        tiers = tiers_of(plan(gpus=4), candidate, 3.0)
        for tier, gpus in zip(tiers, links, strict=True):
            usual = READS[tier.name]
            assert tier.read.bytes_per_s == pytest.approx(usual.bytes_per_s * gpus / 3)
            assert tier.read.latency_s == usual.latency_s
            assert tier.write_bytes_per_s == pytest.approx(WRITES[tier.name] * gpus / 3)


def files(blocks: int, below: int = 0) -> TierCandidate:
    """Return vLLM's CPU memory of so many blocks, and files of so many below."""
    return TierCandidate("vllm@0.33", "dram", blocks * BLOCK_BYTES, below * BLOCK_BYTES)


CHEAP_SSD = {"dram": GIB_HOUR, "ssd": TierPrice(0.01, "stated", writes_per_day=1e6)}


def test_files_below_cpu_memory() -> None:
    """Memory for 5 prompts loses all 20; with files below it is cheaper than memory for all.

    Full of other files, the SSD brings nothing, and does no harm.
    """
    sizes = (files(100), files(100, 800), files(408))
    made = plan(prices=CHEAP_SSD, candidates=sizes, options={"vllm@0.33": STORED_TWICE})
    result = tuned(made)
    chosen = result.recommended
    assert chosen is not None
    assert chosen.candidate == sizes[1]
    assert chosen.tier_hit_rate == pytest.approx(19 / 20)
    assert chosen.cost_hour == pytest.approx((100 + 0.01 * 800) / 1024)
    assert chosen.full_s == pytest.approx(800 * BLOCK_BYTES / chosen.written_bytes_s)
    assert made.wear(chosen) == pytest.approx(86_400 / chosen.full_s / 1e6)
    full = result.ends[-1]
    assert (full.end.name, full.holds) == ("an SSD full of other files", True)
    assert full.choice.tier_hit_rate < 0.01
    assert [trial.candidate for trial in result.sizes] == [sizes[1]]
    launch = as_recommended(made, result).launch
    assert launch is not None
    assert json.loads(launch.arguments[1])["kv_connector_extra_config"] == {
        "cpu_bytes_to_use": 100 * BLOCK_BYTES,
        "spec_name": "TieringOffloadingSpec",
        "secondary_tiers": [{"type": "fs", "root_dir": "PATH"}],
    }
    tried = {
        (each.candidate.files_bytes > 0, each.candidate.offload)
        for each in result.explored
        if each.candidate
    }
    assert (False, "vllm@0.33:store_threshold=2") in tried
    assert (True, "vllm@0.33:offload_prompt_only=false") in tried
    assert (True, "vllm@0.33:store_threshold=2") not in tried  # vLLM refuses it with files


def test_files_of_hicache() -> None:
    """Prompts of 320 tokens are prefetched; an engine that goes on without waiting computes them.

    Which prefetches wait is tried with files alone.
    """
    sizes = tuple(replace(files(100, below), offload="sglang-hicache") for below in (0, 800))
    prefetches = (("hicache_storage_prefetch_policy", ("best_effort", "wait_complete")),)
    made = plan(prices=CHEAP_SSD, candidates=sizes, options={"sglang-hicache": prefetches})
    result = tuned(made)
    assert result.recommended is not None
    assert result.recommended.candidate == sizes[1]
    assert result.recommended.tier_hit_rate == pytest.approx(19 / 20)
    hits = {x.candidate.offload: x.tier_hit_rate for x in result.explored if x.candidate}
    assert hits["sglang-hicache:hicache_storage_prefetch_policy=best_effort"] < 0.01
    assert len(result.explored) == 4
    full = result.ends[-1]
    assert (full.end.name, full.holds, full.choice.tier_hit_rate < 0.01) == (FULL.name, True, True)
    recommended = as_recommended(made, result)
    assert recommended.launch is not None
    assert "--hicache-storage-backend" in recommended.launch.arguments
    assert "add a third tier" not in str(recommended.left_out)
    words = " ".join(in_words(recommended))
    assert "SGLang deletes none of its files: at this rate the SSD of 0.781 GiB is full" in words


def test_reads_that_drop_each_other() -> None:
    """Memory for one prompt, and several at once: vLLM would never start some requests."""
    candidates = (files(22), files(22, 800))
    fast = tuned(plan(prompts=a_trace(0.05), prices=CHEAP_SSD, candidates=candidates))
    (rejected,) = fast.rejected
    assert rejected.candidate == candidates[1]
    assert "never start" in rejected.reason
    assert {trial.candidate for trial in fast.compared} == {candidates[0]}


@pytest.mark.parametrize(("window", "why"), [(0, ""), (1, ""), (2, "never-starts")])
def test_no_window_may_have_requests_that_never_start(
    monkeypatch: pytest.MonkeyPatch, window: int, why: str
) -> None:
    """The cheapest is not recommended; of the one that is dearer, no more is known in the last."""
    of, candidates = TierWindow.of, (files(22), files(22, 800), files(100, 800))
    made = plan(prices=CHEAP_SSD, candidates=candidates)
    judged = [each.setting.definition.warmup for each in made.cut(made.prompts)[1]][window]

    def rejected(self: TierWindow, candidate: TierCandidate | None, *more: float) -> TierTrial:
        if candidate == candidates[1] and self.workload.setting.definition.warmup == judged:
            raise UsageError("requests never start")
        return of(self, candidate, *more)

    monkeypatch.setattr(TierWindow, "of", rejected)
    result = tuned(made)
    chosen = result.recommended and result.recommended.candidate
    assert (result.why, chosen) == (why, None if why else candidates[2])
    assert [each.candidate for each in result.rejected] == [candidates[1]]


def test_an_option_that_gains_nothing_stays(paying: TierTuning) -> None:
    """The engine's own values are kept among equals, and each option costs a replay a size."""
    sizes = tuple(each for each in plan().candidates if each.offload == "vllm@0.33")
    result = tuned(plan(candidates=sizes, options={"vllm@0.33": STORED_TWICE}))
    assert result.recommended is not None
    assert result.recommended.candidate == sizes[1]
    assert len(result.explored) == len(sizes) + 2 * 2  # two sizes up to the one that is chosen
    assert [trial.candidate for trial in result.sizes] == list(sizes)


def test_a_policy_of_the_plugin_has_estimates() -> None:
    """Parameters are estimated on the training window, in whole tokens."""
    sizes = plan().candidates[1:2]
    options = {"vllm@0.33": (("eviction_policy", ("tlru",)),)}
    result = tuned(plan(candidates=sizes, options=options))
    offload = result.explored[-1].candidate and result.explored[-1].candidate.offload
    assert offload is not None
    spec = OffloadSpec.parse(offload)
    assert spec.eviction_policy == "tlru"
    xi_tokens = dict(spec.params)["xi_tokens"]
    assert xi_tokens == round(PROFILE.xi_tokens(0.2))


def test_a_stated_policy_has_estimates_too() -> None:
    """What is not stated is estimated and printed: the plugin runs what was replayed."""
    offload = "vllm@0.33:eviction_policy=tlru:next_prompt_tokens=31.5"
    size = replace(plan().candidates[1], offload=offload)
    made = plan(candidates=(size,))
    result = tuned(made)
    assert result.recommended is not None
    assert result.recommended.candidate is not None
    spec = result.recommended.candidate.spec
    assert isinstance(spec, OffloadSpec)
    xi_tokens = round(PROFILE.xi_tokens(0.2))
    stated = {"xi_tokens": xi_tokens, "next_prompt_tokens": 31.5, "guard": 1}
    assert dict(spec.params).items() >= stated.items()
    launch = as_recommended(made, result).launch
    assert launch is not None
    settings = read_settings(json.loads(launch.arguments[-1]), {})
    assert settings.cpu_tier is not None
    assert settings.cpu_tier.values.items() >= stated.items()


def test_memory_that_is_there_costs_nothing() -> None:
    """Among sizes that are all free, the smallest that meets the SLO."""
    result = tuned(plan(prices={"dram": structs.replace(GIB_HOUR, gib_hour=0.0), "ssd": GIB_HOUR}))
    assert result.recommended is not None
    assert result.recommended.cost_hour == 0
    assert result.recommended.candidate == plan().candidates[1]
    assert [each.candidate for each in result.front] == [None, plan().candidates[1]]


def test_the_held_out_window_may_reject() -> None:
    """Where nothing comes back any more, a tier that was chosen before does not gain."""
    again = in_turn(CONVERSATIONS, 40, BLOCKS)
    new = [
        structs.replace(request, hash_ids=[10_000 + at * BLOCKS + block for block in range(BLOCKS)])
        for at, request in enumerate(again)
    ]
    trace = prompts(built([*again[:600], *new[600:]], BLOCK))
    trace = replace(trace, arrival_s=trace.arrival_s / trace.arrival_s[-1] * 800)
    result = tuned(plan(prompts=trace))
    assert result.choice is not None
    assert result.choice[0].trial.meets(plan().target)
    assert (result.verdict, result.why, result.recommended) == ("keep-none", "held-out", None)


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
    result = tuned(plan())
    assert (result.verdict, result.why, result.recommended) == ("keep-none", "held-out", None)


def test_another_engine_has_all_its_gpus() -> None:
    """0.4 GiB at 1 an hour: more than one GPU at 0.3, less than two."""
    assert [tuned(plan(gpu_hour=0.3, gpus=gpus)).verdict for gpus in (1, 2)] == [
        "keep-none",
        "pays",
    ]


def test_what_an_option_gains(paying: TierTuning) -> None:
    """More than 2 % of the percentile; of one that is alike, of GPU time, and then of the price."""
    trial = paying.explored[0]

    def other(target_s: float, prefill_share: float = 1.0, cost_hour: float = 1.0) -> TierTrial:
        figures = {
            "prefill_share": trial.prefill_share * prefill_share,
            "cost_hour": trial.cost_hour * cost_hour,
        }
        own = replace(trial.trial, target_s=trial.trial.target_s * target_s)
        return replace(trial, trial=own, **figures)

    assert gains(other(0.97, 2.0), trial)
    assert not gains(other(0.99), trial)
    assert not gains(other(1.03, 0.5), trial)
    assert gains(other(1.01, 0.97), trial)
    assert not gains(other(0.99, 1.03, 0.5), trial)
    assert gains(other(0.99, 1.01, 0.97), trial)
    assert not gains(trial, trial)


def test_gpu_time_may_pay_where_the_slo_is_met() -> None:
    """0.3 of a GPU at 2 an hour is worth more than 0.4 GiB at 1; the net counts, not the size."""
    result = tuned(plan(0.5, gpu_hour=2.0))
    assert result.verdict == "pays"
    chosen = result.recommended
    assert chosen is not None
    assert chosen.candidate is not None
    assert chosen.candidate.size_bytes == WHOLE + 2**23
    made = plan(0.5, gpu_hour=2.0)
    alone = result.baseline[1]
    saved = made.saved_hour(alone, chosen)
    assert saved == pytest.approx(2 * (alone.prefill_share - chosen.prefill_share))
    assert replace(made, gpus=4).saved_hour(alone, chosen) == pytest.approx(4 * saved)
    assert saved is not None
    assert saved > chosen.cost_hour


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
    ("gpu_hour", "blocks", "verdict"),
    [
        (None, ALL, "helps"),
        (1.5, ALL, "helps"),  # neither pays: 0.23 and 0.47 are saved for 0.51 and 1.21
        (3.5, FEW, "pays"),  # 0.54 and 1.09
        (4.2, ALL, "pays"),  # 0.65 and 1.30: the lower percentile, though it saves less
    ],
)
def test_beyond_the_slo_memory_has_to_pay(
    gpu_hour: float | None, blocks: int, verdict: str
) -> None:
    """Of sizes that all miss the SLO, those that save their price go before the fastest."""
    sizes = tuple(TierCandidate("vllm@0.33", "dram", blocks * BLOCK_BYTES) for blocks in (FEW, ALL))
    made = plan(0.001, prompts=sooner_and_later(), candidates=sizes, gpu_hour=gpu_hour)
    result = tuned(made)
    assert result.recommended is not None
    assert result.recommended.candidate is not None
    assert result.recommended.candidate.size_bytes == blocks * BLOCK_BYTES
    assert result.verdict == verdict
    faster = [word for word in in_words(as_recommended(made, result)) if "The lowest p95" in word]
    sentence = (
        "The lowest p95 TTFT on the validation window, 24.8 ms, needs 1.21 GiB of CPU memory"
        " (vllm@0.33): it costs 1.21 an hour and saves 1.09."
    )
    assert faster == ([sentence] if blocks == FEW else [])


def test_options_are_searched_where_it_pays() -> None:
    """At the size that would be chosen beyond the SLO, and no larger one."""
    sizes = tuple(TierCandidate("vllm@0.33", "dram", blocks * BLOCK_BYTES) for blocks in (FEW, ALL))
    searched = {"vllm@0.33": STORED_TWICE}
    made = plan(0.001, prompts=sooner_and_later(), candidates=sizes, options=searched)
    for gpu_hour, blocks in ((3.5, {FEW}), (4.2, {FEW, ALL})):
        tried = tuned(replace(made, gpu_hour=gpu_hour)).explored
        options = (
            each.candidate for each in tried if each.candidate and each.candidate not in sizes
        )
        assert {each.size_bytes // BLOCK_BYTES for each in options} == blocks


def test_what_pays_does_so_at_the_ends_too() -> None:
    """With a prefill half as long it saves half: beyond the SLO it then helps, at its price."""
    size = TierCandidate("vllm@0.33", "dram", FEW * BLOCK_BYTES)
    ends = (End("prefill half as long", 0.5),)
    made = plan(0.001, prompts=sooner_and_later(), candidates=(size,), gpu_hour=4.0)
    assert [tuned(replace(made, ends=each)).verdict for each in ((), ends)] == ["pays", "helps"]


def test_gpu_time_may_pay_where_the_percentile_stays() -> None:
    """Half of the prompts are new, so p95 is theirs; the other half is not computed again."""
    sizes = tuple(
        TierCandidate("vllm@0.33", "dram", size) for size in (WHOLE // 8, 30 * BLOCKS * BLOCK_BYTES)
    )
    trace = with_one_offs()
    trace = replace(trace, arrival_s=np.arange(len(trace.leaf)) * 2.0)  # none waits
    result = tuned(plan(0.5, prompts=trace, candidates=sizes, gpu_hour=12.0))
    lowest_s = min(trial.trial.target_s for trial in result.compared)
    assert result.baseline[0].trial.target_s == pytest.approx(lowest_s)
    assert result.choice is not None
    assert result.choice[0].candidate == sizes[1]


def test_gpu_time_has_to_pay_on_held_out_requests() -> None:
    """At a third of the arrival rate a third is saved: 0.2 an hour for 0.4."""
    trace = a_trace()
    last = trace.arrival_s[600]
    arrival_s = trace.arrival_s + 2 * (trace.arrival_s - last).clip(0)
    result = tuned(plan(0.5, prompts=replace(trace, arrival_s=arrival_s), gpu_hour=2.0))
    assert result.choice is not None
    assert (result.verdict, result.why) == ("keep-none", "held-out")
    net = [
        plan(gpu_hour=2.0).net_hour(*both)
        for both in zip(result.baseline, result.choice, strict=True)
    ]
    assert net[0] > 0 > net[1]


def test_gpu_time_has_to_pay_at_the_ends_too() -> None:
    """With a prefill half as long, half as much is saved: 0.3 an hour for 0.4."""
    result = tuned(plan(0.5, gpu_hour=2.0, ends=(End("prefill half as long", 0.5),)))
    assert (result.verdict, result.why) == ("keep-none", "uncertain")
    assert [end.holds for end in result.ends] == [False, True]


def test_an_end_with_harm_keeps_no_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where copies are slow enough to be worse than computing, the choice is withdrawn."""
    slow = replace(READS["dram"], bytes_per_s=BLOCK_BYTES * 100.0)  # 20 blocks in 0.2 s
    monkeypatch.setitem(READS, "dram", slow)  # type: ignore[arg-type]
    result = tuned(plan(0.25))
    assert result.choice is not None
    assert (result.verdict, result.why) == ("keep-none", "uncertain")
    assert not result.ends[-1].holds


def test_ends_change_latency_and_pool() -> None:
    """A pool for everything needs no tier, and has no harm by one."""
    ample = End("the largest pool and prefill 0.5x as long", 0.5, 1000)
    result = tuned(plan(ends=(ample,)))
    end = result.ends[0]
    assert end.baseline.trial.outcome.token_hit_rate == pytest.approx(19 / 20)
    assert end.holds
    assert result.verdict == "pays"


def test_writes_wear_an_ssd_out() -> None:
    """Within its rating it costs its size, beyond so many times as much; CPU memory never wears."""
    price = TierPrice(2.0, "stated", writes_per_day=1.0)
    assert price.hour(2**30) == 2.0
    assert price.hour(2**30, 2**30 / 86_400) == pytest.approx(2.0)
    assert price.hour(2**30, 3 * 2**30 / 86_400) == pytest.approx(6.0)
    assert tier_prices().dram.hour(2**30, 1e12) == tier_prices().dram.gib_hour


def test_a_stop_ends_it() -> None:
    """Nothing is answered once it is stopped."""
    stop = Event()
    stop.set()
    with pytest.raises(Stopped):
        tune_tiers(plan(), lambda _: nullcontext(lambda _: None), stop)
