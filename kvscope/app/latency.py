"""Choose the latency profile for a trace: the stated or derived one, or one fitted to its TTFTs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.app.monitor import Monitor
from kvscope.core.errors import InputError
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.deployment import ResolvedDeployment, resolve
from kvscope.latency.profile import FROM_TRACE, TO_FIT, LatencyProfile
from kvscope.replay.settings import setting_profile, timed_by

if TYPE_CHECKING:
    from kvscope.app.requests import FleetRequest, SimulateRequest
    from kvscope.latency.observed import TraceFit

Timed = TypeVar("Timed", "SimulateRequest", "FleetRequest")


class TraceLatency(Struct, frozen=True):
    """The latency profile for a trace, and the deployment with this profile.

    `fit` is None unless the profile was fitted to the trace's TTFTs. `note` says that it was, or
    why not; empty if no fit was tried.
    """

    profile: LatencyProfile
    deployment: ResolvedDeployment | None = None
    fit: TraceFit | None = None
    note: str = ""


def fit_to(trace: Trace, prompts: Prompts) -> TraceFit:
    """Return the profile fitted to a trace's TTFTs. Raises InputError if they determine none."""
    from kvscope.latency.observed import fit_ttfts

    remedy = "measure with `kvscope calibrate`"
    if trace.measured_requests and trace.models and trace.models > 1:
        raise InputError(
            f"has requests of {trace.models} models, which take different times",
            where=trace.name,
            remedy=f"take one model's requests, or {remedy}",
        )
    if np.any(prompts.clock >= 1):
        raise InputError(
            "its sessions have no common clock, so which requests waited is unknown",
            where=trace.name,
            remedy=remedy,
        )
    return fit_ttfts(trace.name, prompts.arrival_s, prompts.input_tokens, prompts.measurements)


def latency_for(
    trace: Trace,
    profile: LatencyProfile,
    deployment: ResolvedDeployment | None,
    prompts: Callable[[], Prompts],
) -> TraceLatency:
    """Return the latency profile for a trace: the stated or derived one, or a fit to its TTFTs.

    `--latency trace`, stated in `deployment` or (without one) as profile TO_FIT, takes the fit; it
    raises InputError if the TTFTs determine none. A roofline, a profile derived from the data
    sheets of GPU and model, is replaced by the fit if there is one within the roofline's band: from
    `latency_low` to `latency_high` times the derived time. TTFTs outside it seem to be of other
    GPUs. Other profiles stay. `prompts` loads the trace's prompts.
    """
    named = deployment.stated.latency == FROM_TRACE if deployment else profile == TO_FIT
    derived = deployment is not None and deployment.latency_origin == "derived"
    if not named and not (derived and trace.measured_requests):
        return TraceLatency(profile, deployment)
    loaded = prompts()
    measured = loaded.measurements
    if not named and (measured is None or np.isnan(measured.ttft_s).all()):
        return TraceLatency(profile, deployment)
    try:
        fitted = fit_to(trace, loaded)
    except InputError as error:
        if named:
            raise
        remedy = str(error.remedy)
        why = f"{error.what}. {remedy[:1].upper()}{remedy[1:]}."
        return TraceLatency(
            profile, deployment, note=f"TTFT is a roofline's, not fitted to the trace: {why}"
        )
    if deployment is not None:
        times = 1.0
        if not named and measured is not None:  # over the derived time, where hits are known
            known = measured.cached_tokens >= 0
            cached = measured.cached_tokens[known]
            tokens = loaded.input_tokens[known] - cached, cached
            times = float(
                fitted.profile.ttft_s(*tokens).sum() / deployment.latency.ttft_s(*tokens).sum()
            )
        if not deployment.latency_low <= times <= deployment.latency_high:
            note = (
                f"TTFT is a roofline's: the trace's TTFTs are {times:.2g} times as long, as if on"
                " other GPUs (--latency trace fits them)."
            )
            return TraceLatency(profile, deployment, note=note)
        deployment = resolve(deployment.stated, fitted=fitted)
    timed = deployment.latency if deployment else fitted.profile
    return TraceLatency(timed, deployment, fitted, f"TTFT is {timed.source}.")


def beyond_length(deployment: ResolvedDeployment | None, prompts: Prompts) -> Iterator[str]:
    """Yield a note on the requests longer than a stated `max_model_len`, if there are any."""
    longest = deployment.stated.max_model_len if deployment else None
    if longest is None:
        return
    refused = np.count_nonzero(prompts.input_tokens + prompts.output_tokens > longest)
    if refused:
        yield (
            f"{refused:,} of {len(prompts.input_tokens):,} requests have more tokens than"
            f" --max-model-len {longest}: the engine refuses or cuts them, here they are served"
        )


def timed(
    request: Timed, trace: Trace, prompts: Prompts, monitor: Monitor
) -> tuple[Timed, TraceLatency]:
    """Return `request` with its latency for this trace (`latency_for`), and that latency.

    Note a fit to the trace's TTFTs, or why none is used, uncertainties of the deployment's engine,
    and requests that the engine would refuse.
    """
    for doubt in request.deployment.engine_doubts if request.deployment else ():
        monitor.note(doubt)
    for beyond in beyond_length(request.deployment, prompts):
        monitor.note(beyond)
    profile = setting_profile(request.setting)
    latency = latency_for(trace, profile, request.deployment, lambda: prompts)
    if latency.note:
        monitor.note(latency.note)
    if latency.fit is None:
        return request, latency
    setting = timed_by(request.setting, latency.profile)
    return replace(request, setting=setting, deployment=latency.deployment), latency
