"""Traffic of which it is known what tuning has to find, and the short way to a `TuningResult`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event

import numpy as np
from msgspec.structs import replace

from kvscope.characterize.distributions import Windows
from kvscope.core.hits import standard
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Lineage, Prompts
from kvscope.ingest.formats.base import Request
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.policies.registry import by_name
from kvscope.replay.metrics import ServedRequests
from kvscope.replay.policy_options import Variant
from kvscope.replay.settings import run_setting
from kvscope.replay.sweep import serve_replay
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.synth.base import Record
from kvscope.tuning.bootstrap import Bootstrap, Gain
from kvscope.tuning.comparison import Harm, WindowTrial
from kvscope.tuning.plan import PlanOption, TuningPlan
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Advance, trial_of
from kvscope.tuning.tuner import Tuner, TuningOptions, TuningResult
from tests import small_traces

BLOCK = 16
PROFILE = LatencyProfile("by hand", "10 ms and 1 ms a token", 0.010, 0.001)
SETTING = run_setting(standard(), PROFILE)
ENGINE = replace(
    SETTING,
    capacity_model="engine",
    max_num_seqs=8,
    max_num_batched_tokens=512,
    decode_base_s=0.005,
    decode_request_s=0.001,
)
WINDOWS = Windows(1.0, 1)
TLRU = (Variant(by_name("tlru")),)


def in_turn(conversations: int = 20, rounds: int = 24, blocks: int = 20) -> list[Request]:
    """Conversations that all come back once a round, each with the prompt it had before.

    LRU loses each just before it returns, as long as one of them does not fit.
    """
    trace: list[Request] = []
    for at in range(conversations * rounds):
        who = at % conversations
        trace.append(
            Request(
                input_tokens=blocks * BLOCK,
                output_tokens=1,
                arrival_s=float(at),
                hash_ids=[who * 1_000 + depth for depth in range(blocks)],
                chat_id=at,
                parent_chat_id=at - conversations if at >= conversations else -1,
            )
        )
    return trace


def chats(seed: int, requests: int = 480, told: bool = True) -> list[Request]:
    """Conversations of random lengths, pauses and turns, some with a shared head.

    `told` gives chat ids and parents; else lineage has to be inferred.
    """
    rng = np.random.default_rng(seed)
    threads: list[list[int]] = []
    last: list[tuple[int, int]] = []
    trace: list[Request] = []
    fresh, now_s = 1_000, 0.0
    for number in range(requests):
        now_s += float(rng.exponential(5.0))
        if threads and rng.random() < 0.7:
            who = len(threads) - 1 - min(int(rng.geometric(0.15)), len(threads)) + 1
            who = max(who, 0)
        else:
            who = len(threads)
            threads.append(list(range(int(rng.integers(0, 3)))))
            last.append((-1, 0))
        added = int(rng.integers(1, 12))
        threads[who] += range(fresh, fresh + added)
        fresh += added
        asked = Request(
            input_tokens=len(threads[who]) * BLOCK,
            output_tokens=int(rng.integers(1, 3 * BLOCK)),
            arrival_s=now_s,
            hash_ids=list(threads[who]),
        )
        if told:
            asked.chat_id, asked.parent_chat_id = number, last[who][0]
        last[who] = (number, asked.input_tokens)
        trace.append(asked)
    return trace


def disturbed(trace: Sequence[Request], seen: int, seed: int) -> list[Request]:
    """Return the same first `seen` requests, and others after them that continue any of them."""
    rng = np.random.default_rng(seed)
    later = []
    now_s = trace[seen - 1].arrival_s or 0.0
    for number in range(seen, len(trace)):
        now_s += float(rng.exponential(50.0))
        base = trace[int(rng.integers(seen))]
        ids = [*(base.hash_ids or ()), *(int(one) for one in rng.integers(9_000, 9_050, size=3))]
        asked = replace_request(base, ids=ids, at_s=now_s, outputs=int(rng.integers(1, 400)))
        if base.chat_id is not None:
            asked.chat_id, asked.parent_chat_id = number, base.chat_id
        later.append(asked)
    return [*trace[:seen], *later]


def replace_request(base: Request, *, ids: list[int], at_s: float, outputs: int) -> Request:
    """Return a request with this prompt, in no conversation yet."""
    return Request(
        input_tokens=len(ids) * BLOCK, output_tokens=outputs, arrival_s=at_s, hash_ids=ids
    )


def recorded(records: Iterable[Record]) -> list[Request]:
    """Return generated records as requests."""
    return [
        Request(
            input_tokens=one.input_length,
            output_tokens=one.output_length,
            arrival_s=one.timestamp,
            hash_ids=list(one.hash_ids),
            chat_id=one.chat_id,
            parent_chat_id=one.parent_chat_id,
        )
        for one in records
    ]


def prompts_of(trace: Sequence[Request]) -> Prompts:
    """Return the trace as replays walk it."""
    return small_traces.prompts(small_traces.built(trace, BLOCK))


def workload(
    trace: Sequence[Request], warmup: float = 0.0, setting: RunSetting = SETTING
) -> Workload:
    """Return the trace with the profile by hand, its first share uncounted."""
    setting = replace(setting, definition=replace(setting.definition, warmup=warmup))
    return Workload(prompts_of(trace), setting, WINDOWS)


def served(times_s: Sequence[float], queued: bool = True) -> ServedRequests:
    """Return requests that came one a second and were served in these seconds; all are counted."""
    trace = in_turn(len(times_s), 1, 1)
    done = serve_replay(workload(trace), ReplayRequest(Lru(), 5)).served
    times = np.array(times_s, dtype=np.float64)
    return replace(done, ttft_s=times, queued_ttft_s=times.copy() if queued else None)


def window_trial(
    *,
    target_s: float = 0.1,
    violation_share: float = 0.0,
    served_per_s: float = 1.0,
    gain: Gain = Gain(0.2, 0.1, 0.3),  # noqa: B008 - frozen
    harms: tuple[Harm, ...] = (),
    likely: float = 0.99,
    keeps_up: bool = True,
    policy: Policy | None = None,
) -> WindowTrial:
    """Return a trial with these results; all that is not named is of three requests."""
    target, latencies = Target(0.2), served([0.1, 0.1, 0.1])
    trial = trial_of(policy or Lru(), 100, latencies, target)
    bootstrap = Bootstrap(np.arange(3, dtype=np.int32), target, resamples=1)
    return WindowTrial(
        policy=trial.policy,
        capacity_blocks=trial.capacity_blocks,
        outcome=trial.outcome,
        times_ms=trial.times_ms,
        target_s=target_s,
        violation_share=violation_share,
        tel_s=0.0,
        mean_s=trial.mean_s,
        tpot_s=None,
        served_per_s=served_per_s,
        utilization=1.0,
        rejected=0,
        stored_blocks=0,
        gains={"p95": gain, "violations": gain, "tel": gain},
        attainment_gain=Gain(0.0, 0.0, 0.0),
        harms=harms,
        resampled=bootstrap.figures(latencies.ttft_s),
        meeting_share=1.0,
        interval_s=(target_s, target_s),
        likely=likely,
        keeps_up=keeps_up,
        ttft_s=latencies.ttft_s,
        categories=(),
    )


@contextmanager
def quiet(label: str, total: int = 0) -> Iterator[Advance]:
    """Progress that nobody watches; nothing is counted beyond what was announced."""
    counted: list[int] = []
    yield counted.append
    assert not total or sum(counted) <= total, label


def tuned(
    trace: Sequence[Request],
    slo_s: float,
    variants: Sequence[Variant] = TLRU,
    *,
    lineage: Lineage = "given",
    target: Target | None = None,
    stop: Event | None = None,
    setting: RunSetting = SETTING,
    **question: object,
) -> TuningResult:
    """Return what `tune` recommends for a trace."""
    asked = TuningOptions(target or Target(slo_s), tuple(variants), **question)  # type: ignore[arg-type]
    return Tuner(
        prompts_of(trace), setting, asked, WINDOWS, lineage=lineage, progress=quiet, stop=stop
    ).run()


def plan_of(tuning: TuningResult) -> TuningPlan:
    """Return the plan of a tuning without a deployment: LRU as it is, and the choice."""
    judged = [(tuning.lru, tuning.lru_slo_met)]
    judged += [(tuning.choice, tuning.slo_met)] if tuning.choice else []
    return TuningPlan(
        tuple(
            PlanOption(
                judged=each,
                machine=None,
                replicas=1,
                router=None,
                tier=None,
                price_hour=None,
                slo=answer,
                attainment_interval=(each.later.attainment, each.later.attainment),
                meets_target=each.later.meets(tuning.target),
                saves_hour=None,
            )
            for each, answer in judged
        )
    )
