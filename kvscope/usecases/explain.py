"""Explain why input tokens missed the cache: every missed token has one cause.

Without a capacity or a deployment nothing is evicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from kvscope.app import options as opt
from kvscope.app.deployment import with_any_latency
from kvscope.app.gates import Figures, Known
from kvscope.app.requests import BASELINE, Capacities, SimulateRequest, stated_capacities
from kvscope.core.errors import UsageError
from kvscope.core.records import Beside
from kvscope.replay.causes import CAUSES, Cause
from kvscope.usecases.base import Opened, UseCase
from kvscope.usecases.simulate import SimulateOptions, simulate_request

if TYPE_CHECKING:
    from kvscope.app.monitor import Monitor
    from kvscope.core.arrays import Int32s, Int64s
    from kvscope.core.hits import HitDefinition
    from kvscope.core.trace import PromptParts, Prompts, Tenants, Trace
    from kvscope.deployment.deployment import ResolvedDeployment
    from kvscope.deployment.models import Model
    from kvscope.policies.base import Policy
    from kvscope.replay.attribution import Attribution, CacheLookups
    from kvscope.replay.contention import GroupLosses
    from kvscope.replay.findings import CauseTotal, ExplainedRequest, Finding, Observed
    from kvscope.replay.observed_hits import HitGaps
    from kvscope.replay.prompt_parts import Break, PartTotal
    from kvscope.replay.workload import Workload
    from kvscope.store.db import Store
    from kvscope.store.file import Stores

_BY_ID = "id:"
MOST_REQUESTS = 10


class ExplainOptions(opt.DeploymentOptions, frozen=True, kw_only=True):
    """Options of `explain`."""

    request: str | None = opt.option(
        "Explain this request alone, by its number in order of arrival, from 0, or by its id"
        " in the trace (id:7 where 7 is a number too).",
        "N",
    )
    by: Literal["type", "user"] | None = opt.option(
        "Say whose requests push out whose, by the type or the user of a request, and what each"
        " would hit in blocks of its own."
    )
    pooled: bool = opt.option("Replay one cache for all workers that the trace names.", value=False)
    policy: str = opt.option(
        "Eviction policy (see `kvscope policies`).", "NAME", str.lower, value="lru"
    )
    param: opt.Params = None
    capacity: int | None = opt.Size(
        "Capacity of the cache, for example 20GiB; needs --model.",
        default="infinite without a deployment",
    )
    capacity_blocks: int | None = opt.Blocks("Capacity in blocks.")
    outputs: opt.Outputs = "carried"


class ExplainRequest(Struct, frozen=True):
    """The replay whose misses to explain, and the number or id of a request, None for all.

    Without a capacity nothing is evicted. `pooled`: ignore the workers that the trace names.
    `by` is the attribute that groups requests, to show whose blocks evict whose.
    """

    replayed: SimulateRequest
    request: str | None = None
    pooled: bool = False
    by: Literal["type", "user"] | None = None


class Explanation(Struct, frozen=True, kw_only=True):
    """Why input tokens missed; `causes` add up to `missed_tokens`.

    `capacity_blocks` is null for an infinite cache, and per worker if there are several `workers`:
    those that the trace names, or else the deployment's replicas behind `router`. `findings` are
    causes with a remedy, of 1 % of the input tokens or more. `observed` compares the hits that an
    engine reported with the predicted ones, null if none did. `groups` of requests are set with
    `--by`. `requests` are explained one by one: the one of `--request`, else those that lost most
    tokens. `parts` are the prompt parts that lose most tokens, if the trace names parts. Not in
    documents: `single` (one request was asked for), `broken` (at which token and in which part each
    prompt breaks, by cause), `gaps` (why each request's observed hits differ from the predicted
    ones), and `attribution` (the causes by request).
    """

    trace: Trace
    model: Model | None
    deployment: ResolvedDeployment | None
    definition: HitDefinition
    policy: str
    params: Mapping[str, float]
    capacity_model: str
    capacity_blocks: int | None
    workers: int
    router: str | None = None
    input_tokens: int
    hit_tokens: int
    missed_tokens: int
    causes: tuple[CauseTotal, ...]
    findings: tuple[Finding, ...]
    observed: Observed | None
    groups: tuple[GroupLosses, ...]
    requests: tuple[ExplainedRequest, ...]
    parts: tuple[PartTotal, ...]
    single: Beside[bool]  # `requests` has the one that was asked for, else those that lost most
    attribution: Beside[Attribution]
    broken: Beside[Mapping[Cause, Break]]
    gaps: Beside[HitGaps | None]


class TraceEvidence(Struct, frozen=True):
    """Facts of the store about a trace's requests, apart from their prompts.

    `tenants` are None if all requests share blocks. `measured_hit_tokens`, by request (-1: not
    measured), are of the latest validation with the policy, on an engine with `measured_blocks`.
    `request` is the number of the request to explain. A request's messages begin with the first
    `repeated_tokens` (by request) of the previous turn's prompt. `parts` are the parts of prompts.
    """

    tenants: Tenants | None = None
    repeated_tokens: Int32s | None = None
    parts: PromptParts | None = None
    measured_hit_tokens: Int64s | None = None
    measured_blocks: int | None = None
    request: int | None = None


def explain_request(options: ExplainOptions) -> ExplainRequest:
    """Return the request in the options of `explain`."""
    named = stated_capacities(options.capacity, options.capacity_blocks)  # one cache has one
    options = with_any_latency(options)
    replayed = simulate_request(
        SimulateOptions(
            **{name: getattr(options, name) for name in opt.ReplicaOptions.__struct_fields__},
            replicas=options.replicas,
            policy=options.policy,
            param=options.param,
            capacity=named.sizes_bytes or None,
            capacity_blocks=named.blocks or None,
            outputs=options.outputs,
        ),
        replicas=True,
    )
    if len(replayed.variants) != 1:
        raise UsageError(
            f"{len(replayed.variants)} policies or settings",
            where="--policy, --param",
            remedy="name one policy, with one value of each parameter",
        )
    if replayed.capacities == Capacities() and replayed.variants[0].policy.name != BASELINE:
        raise UsageError(
            "needs a capacity",
            where=f"--policy {options.policy}",
            remedy="add --capacity or --capacity-blocks",
        )
    if options.by is not None and replayed.capacities == Capacities():
        raise UsageError(
            "without a capacity nothing is evicted",
            where=f"--by {options.by}",
            remedy="add --capacity, --capacity-blocks or a deployment",
        )
    return ExplainRequest(replayed, options.request, options.pooled, options.by)


def run(opened: Opened, request: ExplainRequest, monitor: Monitor) -> Explanation:
    """Explain the misses of a trace with the evidence in the store."""
    from kvscope.app.traces import replayable

    trace = opened.trace
    with opened.stores.reading():  # so that both have it open at once
        prompts = replayable(opened.stores, trace)
        evidence = read_evidence(opened.stores, trace, request)
    return explain(trace, prompts, request, monitor, evidence)


def read_evidence(stores: Stores, trace: Trace, request: ExplainRequest) -> TraceEvidence:
    """Return the store's evidence on misses.

    Raises UsageError for an unknown request, InputError for a dataset of several tenants.
    """
    import numpy as np

    from kvscope.replay.attribution import NO_REQUEST
    from kvscope.store import traces
    from kvscope.validate.result import stored_validations

    with stores.reading() as store:
        asked = request.request
        number = None if asked is None else request_number(store, trace, asked)
        evidence = TraceEvidence(
            traces.load_tenants(store, trace),
            traces.load_repeated_tokens(store, trace),
            traces.load_parts(store, trace),
            request=number,
        )
        for validation in stored_validations(store, trace):
            for replay in validation.runs:
                if replay.policy != request.replayed.variants[0].policy.name:
                    continue
                numbers, hits = replay.numbers, replay.measured_hit_tokens
                if not len(numbers) and len(hits) == trace.requests:
                    numbers = np.arange(trace.requests)
                if len(numbers):
                    measured = np.full(trace.requests, NO_REQUEST, dtype=np.int64)
                    measured[numbers] = hits
                    blocks = validation.engine.blocks
                    return replace(evidence, measured_hit_tokens=measured, measured_blocks=blocks)
    return evidence


def request_number(store: Store, trace: Trace, request: str) -> int:
    """Return the number of a request, given its number or id in the trace; UsageError for none."""
    from kvscope.ingest.hash_ids import key
    from kvscope.store import traces

    if request.isdecimal() and int(request) < trace.requests:
        return int(request)
    chat_id = request.removeprefix(_BY_ID)
    number = traces.request_by_id(store, trace, key(chat_id))
    if number is None:
        raise UsageError(
            f"the trace has {trace.requests:,} requests, and none with the id {chat_id!r}",
            where=f"--request {request}",
            remedy=f"name one from 0 to {trace.requests - 1}, or its id",
        )
    return number


def explain(
    trace: Trace,
    prompts: Prompts,
    request: ExplainRequest,
    monitor: Monitor,
    evidence: TraceEvidence | None = None,
) -> Explanation:
    """Replay the trace and return the causes of its missed tokens."""
    import numpy as np

    from kvscope.app.latency import timed
    from kvscope.app.simulate import on_groups
    from kvscope.characterize.distributions import round_windows
    from kvscope.replay.attribution import attribute, by_worker, cache_lookups, lru_cache_lookups
    from kvscope.replay.contention import group_losses, grouped
    from kvscope.replay.findings import (
        avoidable_tokens,
        cause_totals,
        explained_request,
        findings,
        hit_gaps_of,
        observed_hits,
    )
    from kvscope.replay.parameter_estimates import bind, estimate_parameters
    from kvscope.replay.prompt_parts import breaks, part_totals
    from kvscope.replay.sweep import WINDOWS, serve_replay
    from kvscope.replay.workload import ReplayRequest, Workload

    evidence = evidence or TraceEvidence()
    of = grouped(prompts, request.by) if request.by else None
    replayed, _ = timed(request.replayed, trace, prompts, monitor)
    replayed = on_groups(replayed, trace)
    named = replayed.capacities.in_blocks(replayed.model, trace.block_size)
    capacity = named[0] if named else None
    setting, variant = replayed.setting, replayed.variants[0]
    windows = round_windows(trace, WINDOWS)
    workload = Workload(prompts, setting, windows)
    estimates = estimate_parameters(workload.request_traffic, workload.profile, setting.slo_s)
    policy = bind(variant, estimates)

    def served(requests: Prompts, capacity: int | None = capacity) -> CacheLookups:
        """Return the lookups of these requests in one cache of this capacity."""
        on_blocks = setting.capacity_model == "cache" and not workload.on_tree(policy)
        if policy.name == BASELINE and on_blocks:
            return lru_cache_lookups(requests, setting.definition, capacity)
        part = workload if requests is prompts else Workload(requests, setting, windows)
        replay = ReplayRequest(policy, capacity or 0)
        done, plain = serve_replay(part, replay), part.without_drafter()
        hits = done.served.hit_blocks
        lookups = partial(cache_lookups, requests, setting.definition, hits)
        if (engine := done.engine) is None:
            # What waits for SGLang is taken as computed when it is looked up.
            return lookups(rejected=done.rejected, written_blocks=requests.full_blocks)
        undrafted = hits if plain is None else serve_replay(plain, replay).served.hit_blocks
        return lookups(
            rejected=engine.oversized,
            written_blocks=engine.written_blocks,
            undrafted_blocks=np.clip(undrafted, hits, np.maximum(engine.written_blocks, hits)),
            kept_blocks=engine.kept_blocks,
        )

    where = replayed.deployment
    worker, router = served_by(workload, where, (policy, capacity or 0), pooled=request.pooled)
    workers = len(np.unique(worker))
    cached = served(prompts) if workers == 1 else by_worker(prompts, worker, served)
    causes = attribute(
        prompts,
        setting.definition,
        cached,
        several=workers > 1,
        tenants=evidence.tenants,
        repeated_tokens=evidence.repeated_tokens,
    )
    broken = breaks(prompts, causes, evidence.parts)
    gaps = hit_gaps_of(prompts, setting.definition, causes, evidence.measured_hit_tokens)
    groups = group_losses(
        prompts,
        setting.definition,
        causes,
        of,
        worker,
        alone=(capacity, served) if workers == 1 and capacity is not None else None,
    )
    lost, number = avoidable_tokens(causes), evidence.request
    if number is not None:
        chosen = [number]
    else:
        worst = np.argsort(-lost, kind="stable")[:MOST_REQUESTS]
        chosen = [int(each) for each in worst if lost[each]]
    input_tokens, hit_tokens = int(causes.input_tokens.sum()), int(causes.hit_tokens.sum())
    return Explanation(
        trace=trace,
        model=replayed.model,
        deployment=replayed.deployment,
        definition=setting.definition,
        policy=policy.name,
        params={name: float(value) for name, value in policy.values.items()},
        capacity_model=setting.capacity_model,
        capacity_blocks=capacity,
        workers=workers,
        router=router,
        input_tokens=input_tokens,
        hit_tokens=hit_tokens,
        missed_tokens=input_tokens - hit_tokens,
        causes=cause_totals(causes),
        findings=findings(prompts, causes, broken, where.block_tokens if where else None),
        observed=None
        if gaps is None
        else observed_hits(prompts, causes, gaps, evidence.measured_blocks),
        groups=groups,
        requests=tuple(
            explained_request(prompts, setting.definition, causes, each, gaps, broken)
            for each in chosen
        ),
        parts=part_totals(causes, broken),
        single=number is not None,
        attribution=causes,
        broken=broken,
        gaps=gaps,
    )


def served_by(
    workload: Workload,
    deployment: ResolvedDeployment | None,
    at: tuple[Policy, int],
    *,
    pooled: bool,
) -> tuple[Int32s, str | None]:
    """Return the worker of each request, and the router's name if workers are replicas.

    `pooled` ignores the workers that the trace names. `at`: policy and blocks of each replica.
    """
    import numpy as np

    prompts = workload.prompts
    worker = np.zeros(len(prompts.leaf), dtype=np.int32)
    if prompts.measurements is not None and not pooled:
        worker = prompts.measurements.worker
    if worker.min() < worker.max() or deployment is None or deployment.engines < 2:
        return worker, None
    from kvscope.tuning.replicas import replica_of, router_of

    router = router_of(deployment)
    return replica_of(workload, deployment.engines, router, *at), router.name


def known_figures(request: ExplainRequest) -> Known:
    """Return the figure names of any explanation."""
    return Known(("hit-rate", "missed", *CAUSES))


def figures(explanation: Explanation) -> Figures:
    """Return the shares of input tokens that hit and that missed, in total and by cause."""
    counts = {"hit-rate": explanation.hit_tokens, "missed": explanation.missed_tokens}
    tokens = {each.cause: each.tokens for each in explanation.causes}
    counts |= {cause: tokens[cause] for cause in CAUSES}
    return {name: count / explanation.input_tokens for name, count in counts.items()}


USE_CASE: UseCase[ExplainOptions, ExplainRequest, Explanation] = UseCase(
    name="explain",
    title="Misses",
    options=ExplainOptions,
    check=explain_request,
    run=run,
    table="causes",
    reporting="misses",
    sections=("summary", "who-evicts-whom", "requests", "request"),
    known=known_figures,
    figures=figures,
    remembers=True,
)
