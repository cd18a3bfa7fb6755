"""Fit models of reuse and of conversations: which one to use, and how stable it is.

The store keeps the result.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from kvscope.app import options as opt
from kvscope.app.deployment import resolved_deployment
from kvscope.app.requests import hit_definition, latency_profile
from kvscope.core import memory
from kvscope.core.errors import UsageError
from kvscope.core.files import STANDARD_STREAM
from kvscope.core.hits import standard
from kvscope.deployment.deployment import option
from kvscope.replay.policy_options import Variant, parse_policies, parse_variants
from kvscope.usecases.base import Opened, UseCase

if TYPE_CHECKING:
    from kvscope.app.monitor import Monitor
    from kvscope.core.trace import Trace
    from kvscope.reuse_models.results import Fit
    from kvscope.store.file import Stores

DEFAULT_EXPORT = "gittins"


class FitOptions(opt.Options, frozen=True, kw_only=True):
    """Options of `fit`; all from `policy` on need `export`.

    `window` is the length (s) of the sliding windows whose fits show how stable the models are.
    """

    window: float | None = opt.Time(
        "Length of a sliding window, for example 1h.", default="1h, or a fifth of a shorter trace"
    )
    warmup: opt.Warmup = 0.0
    export: str | None = opt.Target(
        "Write a policy and its fitted table to this file, for kvscope's plugin for vLLM;"
        " - prints it instead of the report."
    )
    policy: str | None = opt.option("With --export: the policy.", "NAME", default=DEFAULT_EXPORT)
    param: list[str] | None = opt.option(
        "With --export: a parameter of the policy, for example gittins.xi_tokens=2000. Repeatable.",
        "POLICY.NAME=VALUE",
    )
    capacity_blocks: int | None = opt.Blocks(
        "With --export: fit for a cache of this size, in blocks of the trace: what the guard of"
        " gittins knows.",
        default="the deployment's pool, if there is one",
    )
    deployment: opt.DeploymentFile = None


class FitRequest(Struct, frozen=True):
    """The options, and the policy to write to `options.export`, None for none."""

    options: FitOptions
    exported: Variant | None


def fit_request(options: FitOptions) -> FitRequest:
    """Return the request in the options of `fit`."""
    hit_definition(None, "carried", options.warmup)  # the same bounds as everywhere
    if options.export is not None:
        return FitRequest(options, _exported(options))
    for name in ("policy", "param", "capacity_blocks", "deployment"):
        if getattr(options, name) is not None:
            raise UsageError("is for --export", where=option(name), remedy="say what to write")
    return FitRequest(options, None)


def _exported(options: FitOptions) -> Variant:
    """Return the policy to write: one that the plugin supports, with one value per parameter."""
    from kvscope.learning.learners import reads_fit
    from kvscope.policies.registry import check_required
    from kvscope.vllm_plugin.eviction_controller import lane_policy

    name = options.policy or DEFAULT_EXPORT
    kinds = parse_policies(name, "--policy")
    if len(kinds) != 1:
        raise UsageError(f"{name!r} is more than one policy", where="--policy")
    lane_policy(kinds[0](), "--policy")
    variants = parse_variants(kinds, options.param or ())
    if len(variants) != 1:
        raise UsageError("takes one value here", where="--param", remedy="choose one")
    check_required(kinds[0], variants[0].given, "--policy")
    for name in ("capacity_blocks", "deployment"):
        if getattr(options, name) is not None and not reads_fit(kinds[0]):
            raise UsageError(f"{kinds[0].name} has no classes to choose", where=option(name))
    if options.capacity_blocks is not None and options.deployment is not None:
        raise UsageError(
            "both state the capacity",
            where="--capacity-blocks, --deployment",
            remedy="leave out one",
        )
    if reads_fit(kinds[0]):
        resolved_deployment(options)  # so that a wrong file is refused here
    return variants[0]


def run(opened: Opened, request: FitRequest, monitor: Monitor) -> Fit:
    """Return the fit of the trace's models, which the store keeps; write the `exported` policy.

    Raises InputError if the trace lacks data for the options, OutOfMemoryError if too large.
    """
    from kvscope.app.traces import require_hashes
    from kvscope.learning.learners import reads_fit
    from kvscope.replay.footprint import fit_bytes
    from kvscope.reuse_models.evidence import load_evidence
    from kvscope.reuse_models.fit import fit_to
    from kvscope.reuse_models.results import keep
    from kvscope.store.file import CANNOT_STORE

    options, exported, stores = request.options, request.exported, opened.stores
    trace = opened.trace
    if exported is not None:
        require_hashes(trace)
    remedy = "fit to part of its files, or take more memory"
    memory.require(fit_bytes(trace), f"a fit of {trace.name!r}", remedy)
    with stores.reading() as store:
        evidence = load_evidence(store, trace)
    fitted = fit_to(evidence, trace, window_s=options.window, warmup=options.warmup)
    try:
        with stores.writing() as store:
            keep(store, fitted)
    except CANNOT_STORE as error:
        monitor.note(f"the fit was not stored: {error}")
    if exported is not None and options.export is not None:
        blocks = options.capacity_blocks
        if blocks is None and reads_fit(exported.policy):
            where = resolved_deployment(options, trace.block_size)
            if where is not None:
                blocks = where.as_cache.pool.blocks
                monitor.note(f"fitted for the pool of {where.summary}: {blocks:,} blocks")
        write_export(stores, trace, exported, Path(options.export), blocks)
        if options.export != STANDARD_STREAM:
            monitor.note(f"policy written to {options.export}")
    return fitted


def write_export(
    stores: Stores, trace: Trace, variant: Variant, path: Path, capacity_blocks: int | None
) -> None:
    """Write a policy with its table, fitted to the whole trace, in the vLLM plugin's format.

    With `capacity_blocks`, the table of `gittins` has the evidence (gains and losses against LRU)
    that its guard has after the trace in a cache of this size; None: no evidence.
    """
    from kvscope.app.traces import replayable
    from kvscope.learning.offline.learners import fit_for
    from kvscope.replay.parameter_estimates import bind, estimate_parameters
    from kvscope.replay.traffic import traffic
    from kvscope.tuning.file import write_policy

    whole = traffic(replayable(stores, trace), standard())
    estimates = estimate_parameters(whole, latency_profile(None), None, share=1.0)
    policy = bind(variant, estimates)
    fitted = fit_for(whole, policy, capacity_blocks)
    write_policy(path, policy, fitted, trace=trace.name, block_size=trace.block_size)


USE_CASE: UseCase[FitOptions, FitRequest, Fit] = UseCase(
    name="fit",
    title="kvscope fit",
    schema=2,
    options=FitOptions,
    check=fit_request,
    run=run,
    table="models",
    reporting="fit",
    sections=("summary", "models", "stability", "conversations", "next-prompts"),
)
