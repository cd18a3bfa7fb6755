"""The deployment of a command: its options over the file, and what follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kvscope.app.options import DeploymentOptions, FitOptions, ReplicaOptions
from kvscope.core.errors import InputError, UsageError
from kvscope.core.files import STANDARD_STREAM
from kvscope.deployment.deployment import Deployment, ResolvedDeployment, option, resolve
from kvscope.deployment.file import deployment_file, read_deployment

if TYPE_CHECKING:
    from kvscope.app.engine_options import ValidateOptions

    Stating = ReplicaOptions | FitOptions | ValidateOptions

_NAMES = Deployment.__struct_fields__
_OF_A_CACHE_STUDY = frozenset(
    {"model", "kv_dtype", "latency", "max_num_seqs", "max_num_batched_tokens"}
)
"""Options that a study of a cache alone takes too: they make no deployment."""


def stated_deployment(options: Stating) -> Deployment | None:
    """Return the deployment that options and file state, the options first; None if neither does.

    The file is the one named, or else kvscope.toml in the current directory; `-` is none.
    """
    path = _file(options)
    stated = _stated(options)
    if path is None and not stated.keys() - _OF_A_CACHE_STUDY:
        return None
    deployment = Deployment() if path is None else read_deployment(path)
    if "num_gpu_blocks" in stated:  # the file's log would win over it
        deployment = replace(deployment, engine_log=None)
    return replace(deployment, **stated)


def resolved_deployment(
    options: Stating, block_size: int | None = None
) -> ResolvedDeployment | None:
    """Return what follows from the deployment of a command; None where nothing states one.

    The pool is counted in blocks of `block_size` tokens, the trace's. What is wrong in the file is
    an InputError that names file and key, what is wrong in an option a UsageError.
    """
    deployment = stated_deployment(options)
    if deployment is None:
        return None
    path = _file(options)
    try:
        return resolve(deployment, block_size)
    except UsageError as error:
        if path is None or (key := _key(error.where, options)) is None:
            raise
        raise InputError(error.what, where=f"{path}: {key}", remedy=error.remedy) from error


def file_states(options: Stating) -> bool:
    """Return whether a file states a deployment: the one named, or kvscope.toml here."""
    return _file(options) is not None


def resolved_file(path: Path) -> ResolvedDeployment:
    """Return what follows from the deployment in a file. Raises InputError for what is wrong."""
    resolved = resolved_deployment(DeploymentOptions(deployment=str(path)))
    assert resolved is not None  # noqa: S101  (a file states one)
    return resolved


def _file(options: Stating) -> Path | None:
    named = options.deployment
    return None if named == STANDARD_STREAM else deployment_file(named)


def _stated(options: Stating) -> dict[str, object]:
    values = {name: getattr(options, name, None) for name in _NAMES}
    return {name: value for name, value in values.items() if value is not None}


def _key(where: str | None, options: Stating) -> str | None:
    """Return the file's key that a refusal is about; None where an option stated it."""
    stated = _stated(options)
    name = (where or "").split(" ", 1)[0]
    keys = (key for key in _NAMES if option(key) == name and key not in stated)
    return next(keys, None)
