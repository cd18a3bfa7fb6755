"""Find the fewest replicas that meet an SLO, and the router in front of them.

Replays the trace with every router, policy and number of replicas; says what each router loses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace

from kvscope.app import values
from kvscope.app.deployment import resolved_deployment
from kvscope.app.gates import PERCENTILES, VERDICT, Figures, Known, ttft_figures
from kvscope.app.options import Blocks, Count, On, Option, ReplicaOptions, Share, Time, TimeModel
from kvscope.app.requests import (
    BASELINE,
    DEFAULT_PERCENTILE,
    Capacities,
    FleetRequest,
    check_engine_runs,
    hit_definition,
    kv_model,
    latency_profile,
    stated_capacities,
    stated_slo,
)
from kvscope.core.errors import UsageError
from kvscope.fleet.options import ROUTED
from kvscope.replay.policy_options import VLLM, parse_policies, parse_variants
from kvscope.replay.settings import run_setting
from kvscope.usecases.base import Opened, ReportView, UseCase

if TYPE_CHECKING:
    from kvscope.app.documents.fleet import FleetDocument
    from kvscope.app.fleet import FleetLine, FleetStudy
    from kvscope.app.monitor import Monitor
    from kvscope.deployment.deployment import ResolvedDeployment
    from kvscope.fleet.sweep import FleetRun
    from kvscope.policies.base import Policy
    from kvscope.routers.base import Router
    from kvscope.vllm_sim import EngineSettings

_FIGURES = ("replicas", *PERCENTILES, "tpot-p95", "attainment", "hit-rate")


class FleetOptions(ReplicaOptions, frozen=True, kw_only=True):
    """What `fleet` takes."""

    slo: Annotated[
        float | None,
        Time("TTFT threshold to meet, for example 2s.", default="as stated before"),
    ] = None
    percentile: Annotated[
        float | None,
        Option("TTFT percentile that must meet the SLO.", "pN", values.percentile, "p95"),
    ] = None
    tpot_slo: Annotated[
        float | None, Time("Time per output token to meet as well, for example 50ms.")
    ] = None
    replicas: Annotated[
        tuple[int, ...],
        Option("Numbers of replicas to try.", "LOW..HIGH or N,...", values.counts, "1..16"),
    ] = tuple(range(1, 17))
    router: Annotated[
        str | None,
        Option(
            "Routers to try (see `kvscope routers`); all: every one.",
            "NAME,...",
            str.lower,
            ROUTED,
        ),
    ] = None
    policy: Annotated[
        str, Option("Eviction policies of the replicas to try.", "NAME,...", str.lower)
    ] = "lru"
    capacity: Annotated[
        int | None,
        Option(
            "Cache of a replica, for example 40GiB; needs --model.",
            "SIZE",
            values.size,
            "the deployment's pool",
        ),
    ] = None
    capacity_blocks: Annotated[int | None, Blocks("Cache of a replica in blocks.")] = None
    param: Annotated[
        list[str] | None,
        Option(
            "Set a parameter of a router or a policy, for example dynamo@1.6.temperature=0.5;"
            " several values are replayed each. Repeatable.",
            "NAME.PARAMETER=VALUE,...",
        ),
    ] = None
    time_model: Annotated[
        TimeModel | None,
        Option(
            "How a replica takes time. queue: one prefill after the other, decodes apart. engine:"
            " a simulated vLLM, whose pool also holds running requests.",
            default="engine with a deployment on vLLM, else queue",
        ),
    ] = None
    closed_loop: Annotated[
        bool,
        Option("Let a turn arrive its think time after the simulated end of the previous one."),
    ] = False
    seeds: Annotated[int, Count("Seeds to replay routers with that draw at random.")] = 3
    warmup: Annotated[
        float,
        Share(
            "Share of the requests, from the start, that fill the caches and are not counted: by"
            " default those before `tune`'s validation window.",
            default="50%",
        ),
    ] = 0.5
    on: On = None


def fleet_request(options: FleetOptions) -> FleetRequest:
    """Return what the options of `fleet` ask for."""
    from kvscope.fleet.options import parse_routers, router_variants, split_assignments
    from kvscope.fleet.outcome import Slo
    from kvscope.policies.registry import check_required

    named = stated_capacities(
        None if options.capacity is None else (options.capacity,),
        None if options.capacity_blocks is None else (options.capacity_blocks,),
    )
    slo_s = stated_slo(options.slo)
    where = resolved_deployment(
        ReplicaOptions(
            **{name: getattr(options, name) for name in ReplicaOptions.__struct_fields__}
        )
    )
    if where is not None and where.traffic == "replica":
        raise UsageError(
            "a fleet needs the traffic of all replicas, and the deployment's trace holds one's",
            where="--traffic",
            remedy="take a trace of the whole fleet, with --traffic fleet",
        )
    where = where and where.as_cache  # of queues; simulated vLLMs have a hybrid model's groups
    sizes_named = bool(named.sizes_bytes)
    kv = (
        where.model if where else kv_model(options.model, options.kv_dtype, sizes_named=sizes_named)
    )
    if sizes_named and kv is None:
        raise UsageError("bytes need a model", where="--capacity", remedy="name one with --model")
    if where is not None and named == Capacities():
        named = Capacities(tokens=(where.pool.tokens,))
    if named == Capacities():
        raise UsageError(
            "how much a replica caches is not stated",
            where="--capacity-blocks",
            remedy="name it, or --capacity with --model, or a deployment: --gpu and --model",
        )
    profile = where.latency if where else latency_profile(options.latency)
    kinds = parse_routers(options.router or ROUTED)
    assigned, of_policies = split_assignments(kinds, options.param or ())
    policies = parse_policies(options.policy, "--policy")
    for policy in policies:
        if policy.hindsight:
            raise UsageError(
                f"{policy.name} is an oracle, which no engine can run",
                where="--policy",
                remedy="leave it out: a pooled cache with it is shown anyway",
            )
        if policy.name != BASELINE and where is not None and where.kv_groups is not None:
            raise UsageError(
                f"{policy.name} is not replayed on fleets of hybrid models",
                where="--policy",
                remedy="leave it out: vLLM's order is lru",
            )
    time_model = options.time_model or _usual_time_model(where, kinds, policies)
    engine = _engine_limits(options, time_model, where)
    if copying := [kind.name for kind in kinds if kind.copies and time_model == "engine"]:
        raise UsageError(
            f"{copying[0]} copies prefixes between replicas, which simulated vLLMs do not",
            where="--time-model engine",
            remedy="leave it out of --router, or take --time-model queue",
        )
    variants = parse_variants(policies, of_policies)
    for variant in variants:
        check_required(variant.policy, variant.given, "--policy")
    if options.time_model == "engine":
        check_engine_runs(variants, "--policy")
    return FleetRequest(
        setting=run_setting(hit_definition(None, "carried", options.warmup), profile, slo_s=slo_s),
        slo=Slo(slo_s, options.percentile or DEFAULT_PERCENTILE, options.tpot_slo),
        routers=tuple(
            router for kind in kinds for router in router_variants(kind, assigned.get(kind, []))
        ),
        variants=tuple(variants),
        replicas=options.replicas,
        capacities=named,
        model=kv,
        deployment=where,
        time_model=time_model,
        engine=engine,
        closed_loop=options.closed_loop,
        seeds=options.seeds,
        routers_named=options.router is not None,
        on=options.on,
    )


def _usual_time_model(
    where: ResolvedDeployment | None,
    routers: Sequence[type[Router]],
    policies: Sequence[type[Policy]],
) -> TimeModel:
    """Return "engine" for a deployment on vLLM, with routers and policies that it can simulate."""
    from kvscope.policies.base import LanePolicy  # late: loads NumPy

    simulated = where is not None and where.engine.name == VLLM
    followed = all(issubclass(policy, LanePolicy) for policy in policies)
    if simulated and followed and not any(router.copies for router in routers):
        return "engine"
    return "queue"


def _engine_limits(
    options: FleetOptions, time_model: TimeModel, where: ResolvedDeployment | None
) -> EngineSettings | None:
    """Return the limits of a simulated vLLM, its blocks aside; None where none is simulated.

    Raises UsageError where SGLang would have to be.
    """
    from kvscope.vllm_sim import EngineSettings

    if time_model == "queue" and (where is None or where.engine.name != VLLM):
        return None
    if where is not None and where.engine.name != VLLM:
        raise UsageError(
            "SGLang's scheduler is not simulated",
            where="--time-model engine",
            remedy="take --time-model queue",
        )
    limits, usual = where or options, EngineSettings(1)
    if where is not None:
        usual = usual.in_version(where.engine)
    return replace(
        usual,
        max_num_seqs=limits.max_num_seqs or usual.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens or usual.max_num_batched_tokens,
    )


def run(opened: Opened, request: FleetRequest, monitor: Monitor) -> FleetStudy:
    """Return what every router, policy and number of replicas gives."""
    from kvscope.app.fleet import fleet
    from kvscope.app.traces import replayable

    trace = opened.trace
    return fleet(trace, replayable(opened.stores, trace), request, monitor)


def known_figures(request: FleetRequest) -> Known:
    """Return the verdict and figures of a fleet, as `ROUTER.NAME` of a router's."""
    from kvscope.app.fleet import VERDICTS  # loads kernels

    routers = dict.fromkeys(router.name for router in request.routers)
    owned = (f"{router}.{figure}" for router in routers for figure in _FIGURES)
    return Known((*_FIGURES, *owned), VERDICTS)


def fleet_figures(study: FleetStudy) -> Figures:
    """Return the verdict, the answer's figures, and those of each router's best line."""
    figures: dict[str, float | str | None] = {
        VERDICT: study.verdict,
        **_line_figures(study.best, study.chosen),
    }
    for line in reversed(study.ranked):  # the best of a router's lines comes last
        of_line = _line_figures(line, study.chosen)
        figures |= {f"{line.router.name}.{name}": value for name, value in of_line.items()}
    return figures


def _line_figures(line: FleetLine, replicas: int) -> dict[str, float | None]:
    """Return the fewest replicas of a line, and its figures at the chosen number of them."""
    run = line.at(replicas)
    if run is None:
        return dict.fromkeys(_FIGURES)
    return {
        **_run_figures(run),
        "replicas": None if line.fewest is None else float(line.fewest),
    }


def _run_figures(run: FleetRun) -> dict[str, float | None]:
    """Return the figures of one fleet."""
    outcome, latencies = run.outcome, run.outcome.latencies
    ttft, tpot = latencies.ttft_ms, latencies.tpot_ms
    return {
        **(dict.fromkeys(PERCENTILES, math.inf) if ttft is None else ttft_figures(ttft)),
        "tpot-p95": None if tpot is None else tpot.p95 / 1e3,
        "attainment": latencies.attainment,
        "hit-rate": outcome.taken,
    }


def _document(study: FleetStudy) -> FleetDocument:
    from kvscope.app.documents.fleet import fleet_document
    from kvscope.report.fleet import in_words

    return fleet_document(study, in_words(study), fleet_figures(study))


def _view(study: FleetStudy) -> ReportView:
    from kvscope.report import fleet as report

    return ReportView(lambda: report.screen(study), lambda: report.sections(study))


USE_CASE: UseCase[FleetOptions, FleetRequest, FleetStudy] = UseCase(
    name="fleet",
    title="kvscope fleet",
    help=__doc__,
    options=FleetOptions,
    check=fleet_request,
    run=run,
    table="fleets",
    view=_view,
    sections=("answer", "routers", "losses", "replicas", "capacity", "assumed"),
    known=known_figures,
    figures=fleet_figures,
    remembers=True,
    stops=True,
    keeps=True,
    document=_document,
)
