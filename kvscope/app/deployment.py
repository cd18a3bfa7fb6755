"""The deployment and the SLO of a command: from its options, kvscope.toml and earlier commands.

Options win over the file, and the file wins over options of earlier commands on the same trace
(`stated_before`). A command that names a GPU, a model or a pool starts anew: it uses nothing of the
earlier deployment, and no measurement or price of another GPU or model from kvscope.toml. Any other
option (`--tp`, `--slo`, `--gpu-hour`) changes only its own value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kvscope.app import values
from kvscope.app.options import DeploymentOptions, ReplicaOptions
from kvscope.core import units
from kvscope.core.errors import InputError, UsageError, placed
from kvscope.core.files import STANDARD_STREAM
from kvscope.deployment.deployment import Deployment, ResolvedDeployment, option, resolve
from kvscope.deployment.file import TARGET, deployment_file, files_in, read_deployment, read_target
from kvscope.deployment.gpus import GPU_KEYS, gpu_name
from kvscope.latency.profile import DEFAULT_PROFILE, FROM_TRACE


class Stating(Protocol):
    """Options of a command that can state a deployment."""

    @property
    def deployment(self) -> str | None:
        """Path of the file that states the deployment."""


Asked = TypeVar("Asked", bound=ReplicaOptions)
_NAMES = Deployment.__struct_fields__
_KEPT = (*_NAMES, "hbm")
_OF_A_CACHE_STUDY = frozenset(
    {"model", "kv_dtype", "latency", "max_num_seqs", "max_num_batched_tokens"}
)
"""Options that a study of a cache alone takes too: they make no deployment."""


_DEPLOYED = frozenset({"gpu", "num_gpu_blocks", "engine_log"})
"""Options of which one is in each deployment; with a model alone, a cache is studied."""
_SIZES = frozenset(
    {"hbm", "capacity", "capacity_blocks", "capacity_range", "points", "tiers", "view"}
)
"""Options of a cache study, whose place a deployment's pool takes."""
_OF_GPU = (*GPU_KEYS, "gpu_hour")
_MEASURED = ("num_gpu_blocks", "engine_log", "latency")
"""Options whose values hold for one GPU and one model."""
_TARGET_PARSERS = {"slo": values.duration, "percentile": values.percentile}


def stated_deployment(options: Stating) -> Deployment | None:
    """Return the deployment that options and file state, the options first; None if neither does.

    The file is `options.deployment` (`-`: none), by default kvscope.toml in this directory.
    """
    path = _deployed_file(options)
    stated = _given(options, _NAMES)
    if path is None and not stated.keys() - _OF_A_CACHE_STUDY:
        return None
    deployment = Deployment() if path is None else read_deployment(path)
    if "num_gpu_blocks" in stated:  # the file's log would win over it
        deployment = replace(deployment, engine_log=None)
    others = dict.fromkeys(_of_another(deployment.as_table, stated))
    return replace(deployment, **others | stated)


def _of_another(known: Mapping[str, Any], stated: Mapping[str, Any]) -> list[str]:
    """Return the options in `known` that no longer hold, as `stated` names another GPU or model.

    Both map names of options to values. Measurements hold for one GPU and model, a price and a data
    sheet for one GPU; `--latency trace` holds for any.
    """
    names_of = {"gpu": gpu_name, "model": str.lower}
    both = known.keys() & stated.keys() & names_of.keys()
    changed = {key for key in both if names_of[key](stated[key]) != names_of[key](known[key])}
    names = [*(_MEASURED if changed else ()), *(_OF_GPU if "gpu" in changed else ())]
    return [each for each in names if each in known and known[each] != FROM_TRACE]


def names_no_machine(options: ReplicaOptions) -> bool:
    """Return whether options and file state no deployment, no capacity and no latency."""
    return not _given(options, _SIZES | {"latency"}) and stated_deployment(options) is None


def resolved_deployment(
    options: Stating, block_size: int | None = None
) -> ResolvedDeployment | None:
    """Return a command's deployment with its pool and latency; None if none is stated.

    The pool is counted in blocks of `block_size` tokens, the trace's. An error in the file is an
    InputError with file and key, an error in an option a UsageError.
    """
    deployment = stated_deployment(options)
    if deployment is None:
        return None
    path = _deployed_file(options)
    try:
        resolved = resolve(deployment, block_size)
    except UsageError as error:
        if path is None or (key := _key(error.where, options)) is None:
            raise
        raise InputError(error.what, where=f"{path}: {key}", remedy=error.remedy) from error
    stated = _given(options, _NAMES)
    others = [] if path is None else _of_another(read_deployment(path).as_table, stated)
    if dropped := [each for each in others if each not in stated]:
        note = f"{path}: {', '.join(dropped)} left out: the command names another GPU or model"
        resolved = replace(resolved, notes=(*resolved.notes, note))
    return resolved


def with_any_latency(options: Asked) -> Asked:
    """Return options with the default latency preset if a pool is stated without a latency.

    A GPU with a model implies a latency. For questions about hits, which need the pool: latency
    changes only which requests overlap.
    """
    stated = stated_deployment(options)
    if stated is None or stated.latency is not None or (stated.gpu and stated.model):
        return options
    pool = stated.num_gpu_blocks is not None or stated.engine_log is not None
    return replace(options, latency=DEFAULT_PROFILE) if pool else options


def file_states(options: Stating) -> bool:
    """Return whether `options.deployment` or ./kvscope.toml states a deployment."""
    return _deployed_file(options) is not None


def resolved_file(path: Path) -> ResolvedDeployment:
    """Return a file's deployment with its pool and latency. Raises InputError for errors in it."""
    _target_in(path)
    resolved = resolved_deployment(DeploymentOptions(deployment=str(path)))
    assert resolved is not None  # noqa: S101  (a file states one)
    return resolved


class StatedBefore(Struct, Generic[Asked], frozen=True):
    """A command's options, completed by those of earlier commands, and the record for the next one.

    `in_words` describes the earlier options that this command uses; empty if it uses none.
    """

    options: Asked
    record: dict[str, Any]
    in_words: str


def stated_before(options: Asked, record: Mapping[str, Any]) -> StatedBefore[Asked]:
    """Return the options, unset ones filled from `record` and, for the SLO, from kvscope.toml.

    `record` holds the options that earlier commands on the trace stated.
    """
    if getattr(options, "recommendation", None) is not None:  # which settles all of it
        return StatedBefore(options, dict(record), "")
    file, stated = _file(options), _stated_of(options)
    deployed = {name: value for name, value in record.items() if name in _KEPT}
    if _starts_anew(options, deployed):
        deployed = {}
    open_ = {name for name in (*_KEPT, *TARGET) if getattr(options, name, ...) is None}
    if getattr(options, "max_violations", None) is not None:
        open_.discard("percentile")
    target = {name: record[name] for name in TARGET if name in record}
    of_file = {} if file is None else _target_in(file)
    filled = {name: value for name, value in deployed.items() if name in open_}
    aims = {name: value for name, value in (target | of_file).items() if name in open_}
    merged = replace(options, **filled, **aims)
    kept = deployed | {name: value for name, value in stated.items() if name in _KEPT}
    # A file's deployment, or a cache study.
    if _deployed_file(options) is not None or not kept.keys() & (_DEPLOYED | {"model"}):
        kept = {name: value for name, value in record.items() if name in _KEPT}
    kept |= target | {name: value for name, value in stated.items() if name in TARGET}
    shown = {name: value for name, value in _stated_of(merged).items() if filled and name in _KEPT}
    shown |= {name: value for name, value in aims.items() if name not in of_file}
    return StatedBefore(merged, kept, _in_words(shown))


def _starts_anew(options: Stating, deployed: Mapping[str, Any]) -> bool:
    """Return whether a command ignores `deployed`, the options of earlier commands."""
    if options.deployment is not None or _deployed_file(options) is not None:
        return True
    named = {*_given(options, _SIZES | _DEPLOYED)}
    if named & _DEPLOYED or getattr(options, "model", None) is not None:
        return True
    if getattr(options, "beside_pool", False):
        named -= {"capacity", "capacity_blocks"}
    return bool(named and deployed.keys() & _DEPLOYED)


def _given(options: Stating, names: Iterable[str]) -> dict[str, Any]:
    """Return the options among `names` that have a value."""
    values_of = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in values_of.items() if value is not None}


def _stated_of(options: Stating) -> dict[str, Any]:
    """Return the stated options that later commands reuse, with absolute paths."""
    named = _given(options, (*_KEPT, *TARGET))
    stated = {name: value for name, value in named.items() if isinstance(value, str | int | float)}
    return stated | files_in(Path.cwd(), stated)


def _in_words(stated: Mapping[str, Any]) -> str:
    """Return a stated deployment and SLO as one line of text."""
    parts = []
    if stated.keys() & _DEPLOYED:
        known = {name: value for name, value in stated.items() if name in _NAMES}
        parts.append(Deployment(**known).in_words)
    elif "model" in stated:
        parts.append(stated["model"])
    if "hbm" in stated:
        parts.append(f"HBM {units.format_size(stated['hbm'])}")
    if "gpu_hour" in stated:
        parts.append(f"{stated['gpu_hour']:.2f} per GPU and hour")
    percentile = units.format_percentile(stated["percentile"]) if "percentile" in stated else ""
    if "slo" in stated:
        parts.append(f"SLO {percentile} TTFT ≤ {units.duration_in_words(stated['slo'])}")
    elif percentile:
        parts.append(percentile)
    return ", ".join(parts).replace("  ", " ")


def _target_in(path: Path) -> dict[str, float]:
    """Return the SLO (s, key `slo`) and the percentile (0 to 1, key `percentile`) in a file.

    A key that the file does not state is absent. Raises InputError.
    """
    target = {}
    for name, text in read_target(path).items():
        with placed(f"{path}: {name}", InputError):
            target[name] = _TARGET_PARSERS[name](text)
    return target


def _file(options: Stating) -> Path | None:
    named = options.deployment
    return None if named == STANDARD_STREAM else deployment_file(named)


def _deployed_file(options: Stating) -> Path | None:
    """Return the path of the file that states the deployment, None if there is none.

    The file is `options.deployment` (`-`: none), even if it does not exist; by default kvscope.toml
    in this directory, unless that states no deployment but, say, an SLO alone.
    """
    path = _file(options)
    if path is None or options.deployment is not None:
        return path
    return None if read_deployment(path) == Deployment() else path


def _key(where: str | None, options: Stating) -> str | None:
    """Return the key in a deployment's file of the option that an error names.

    `where` is the error's place: an option, perhaps with its value, such as `--gpu h100`. None
    without a place or for another one, and for an option that the command itself states.
    """
    stated = _given(options, _NAMES)
    name = (where or "").split(" ", 1)[0]
    return next((key for key in _NAMES if option(key) == name and key not in stated), None)
