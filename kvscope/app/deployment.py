"""The deployment that options name: those of the command line over those of kvscope.toml."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from kvscope.app.options import DeploymentOptions
from kvscope.app.values import STANDARD_STREAM
from kvscope.core.errors import UsageError
from kvscope.deployment.deployment import Deployment, ResolvedDeployment, option, resolve
from kvscope.deployment.file import deployment_file, read_deployment

_POOL = ("gpu", "num_gpu_blocks", "engine_log")
SHARED = ("model", "kv_dtype", "latency")


def stated_deployment(
    options: DeploymentOptions, shared: Sequence[str] = SHARED
) -> Deployment | None:
    """Return the deployment as it is written, None where nothing says what the pool is.

    Options that are `shared` also mean something without a deployment. Raises UsageError for other
    options of a deployment without one, InputError for a file that cannot be read.
    """
    path = None if options.deployment == STANDARD_STREAM else deployment_file(options.deployment)
    base = read_deployment(path) if path else Deployment()
    known = {field.name for field in fields(Deployment)} & {field.name for field in fields(options)}
    stated = {name: getattr(options, name) for name in sorted(known)}
    stated = {name: value for name, value in stated.items() if value is not None}
    merged = replace(base, **stated)
    if any(getattr(merged, name) is not None for name in _POOL):
        return merged
    alone = [name for name in stated if name not in shared]
    if alone or options.deployment not in {None, STANDARD_STREAM}:
        raise UsageError(
            "needs a deployment",
            where=option(alone[0]) if alone else f"--deployment {options.deployment}",
            remedy="name --gpu and --model, or the engine's --num-gpu-blocks or --engine-log",
        )
    return None


def resolve_deployment(
    options: DeploymentOptions, shared: Sequence[str] = SHARED
) -> ResolvedDeployment | None:
    """Return what follows from the deployment that the options name, None without one."""
    stated = stated_deployment(options, shared)
    return None if stated is None else resolve(stated)
