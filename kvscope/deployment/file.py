"""The deployment as a file: `kvscope.toml` in the current directory, for people to edit.

schema = 1
gpu = "h100"
tp = 2
replicas = 4
model = "llama3-70b"
weight_dtype = "fp8"

slo = "350ms"
percentile = "p95"

trace = "recording/"
db = "team.duckdb"

The keys are the fields of `Deployment`, the target of `tune`, and the trace and store that commands
read by default. Keys left out are derived from the others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from kvscope.core.errors import InputError, UsageError
from kvscope.core.toml_files import SCHEMA, Finite, document_in, table_as, write_toml
from kvscope.deployment.deployment import Deployment, Traffic
from kvscope.deployment.engines import DEFAULT_ENGINE
from kvscope.deployment.models import KvDtype, preset_names
from kvscope.deployment.quantization import WeightDtype
from kvscope.latency.profile import FROM_TRACE, PRESETS

FILE = "kvscope.toml"
TARGET = ("slo", "percentile")
WORK = ("trace", "db")
"""Keys of the trace and the store of commands that name none."""
_REMEDY = "mend it, or remove it and write another with `kvscope deployment create`"
AboveZero = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class DeploymentTable(msgspec.Struct, forbid_unknown_fields=True):
    """A deployment as TOML: the fields of `Deployment`, then options of commands."""

    schema: Annotated[int, msgspec.Meta(ge=SCHEMA, le=SCHEMA)]
    gpu: str | None = None
    gpu_memory_gib: Finite | None = None
    gpu_tflops: Finite | None = None
    gpu_fp8_tflops: Finite | None = None
    gpu_fp4_tflops: Finite | None = None
    gpu_bandwidth_gb_s: Finite | None = None
    gpu_link_gb_s: Finite | None = None
    tp: AboveZero | None = None
    dp: AboveZero | None = None
    replicas: AboveZero | None = None
    traffic: Traffic | None = None
    model: str | None = None
    weight_dtype: WeightDtype | None = None
    kv_dtype: KvDtype | None = None
    gpu_memory_utilization: Finite | None = None
    max_num_seqs: AboveZero | None = None
    max_num_batched_tokens: AboveZero | None = None
    max_model_len: AboveZero | None = None
    block_size: AboveZero | None = None
    prefix_match_unit: AboveZero | None = None
    engine: str | None = None
    speculative: str | None = None
    num_gpu_blocks: AboveZero | None = None
    engine_log: str | None = None
    latency: str | None = None
    gpu_hour: Finite | None = None
    slo: str | None = None
    percentile: str | None = None
    trace: str | None = None
    db: str | None = None


def deployment_file(path: str | None = None) -> Path | None:
    """Return `path` if stated, else kvscope.toml in the current directory, None without one."""
    if path is not None:
        return Path(path)
    here = Path(FILE)
    return here if here.is_file() else None


def read_deployment(path: Path) -> Deployment:
    """Return the deployment in the TOML file at `path`; paths in it are relative to its folder.

    Raises InputError with the file, the key, the value and the remedy.
    """
    stated = {name: value for name, value in _read(path).items() if name not in TARGET + WORK}
    try:
        deployment = Deployment(**stated)
    except UsageError as error:
        key = (error.where or "").removeprefix("--").replace("-", "_")
        raise InputError(error.what, where=f"{path}: {key}", remedy=error.remedy) from error
    return replace(deployment, **files_in(path.parent, stated))


def read_target(path: Path) -> dict[str, str]:
    """Return `slo` and `percentile` where the file states them. Raises InputError."""
    return {name: value for name, value in _read(path).items() if name in TARGET}


def read_work(path: Path) -> dict[str, str]:
    """Return `trace` and `db` where the file states them. Raises InputError."""
    return {name: value for name, value in _read(path).items() if name in WORK}


def files_in(folder: Path, stated: Mapping[str, object]) -> dict[str, str]:
    """Return `model`, `engine_log` and `latency` where they name files in `folder`, as paths."""
    return {
        field: str(folder / value)
        for field in ("model", "engine_log", "latency")
        if isinstance(value := stated.get(field), str)
        and value not in {*preset_names(), *PRESETS, FROM_TRACE}
        and os.path.lexists(folder / value)  # False for a name that is too long
    }


def _read(path: Path) -> dict[str, Any]:
    table = table_as(document_in(path, _REMEDY), DeploymentTable, str(path), _REMEDY)
    stated = msgspec.structs.asdict(table).items()
    return {name: value for name, value in stated if name != "schema" and value is not None}


def write_deployment(path: Path, deployment: Deployment, comments: Sequence[str] = ()) -> None:
    """Write `deployment` to `path`, atomically; `read_deployment` returns an equal one.

    Fields at their defaults are left out; target, trace and store of a readable file are kept.
    """
    kept: dict[str, str] = {}
    with suppress(InputError):
        kept = read_target(path) | read_work(path)
    stated = deployment.as_table | kept
    if deployment.engine == DEFAULT_ENGINE:
        del stated["engine"]
    write_toml(path, DeploymentTable(SCHEMA, **stated), comments)
