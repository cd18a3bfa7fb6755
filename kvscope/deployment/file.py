"""A deployment as a file, `kvscope.toml`, so that it is written once.

    schema = 1
    gpu = "h100"
    tp = 2
    replicas = 4
    model = "llama3-70b"

Its keys are the fields of `Deployment`.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kvscope.core.errors import InputError, placed
from kvscope.core.toml_files import SCHEMA, Finite, document_in, table_as, write_toml
from kvscope.deployment.architecture import WeightDtype
from kvscope.deployment.deployment import Deployment, Traffic
from kvscope.deployment.engines import DEFAULT_ENGINE
from kvscope.deployment.models import KvDtype

FILE = "kvscope.toml"
_REMEDY = "`kvscope deployment create` writes such a file"
Whole = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class DeploymentTable(msgspec.Struct, forbid_unknown_fields=True):
    """kvscope.toml; keys as the fields of `Deployment`."""

    schema: Annotated[int, msgspec.Meta(ge=SCHEMA, le=SCHEMA)] = SCHEMA
    gpu: str | None = None
    tp: Whole = 1
    replicas: Whole = 1
    traffic: Traffic = "fleet"
    model: str | None = None
    weight_dtype: WeightDtype | None = None
    kv_dtype: KvDtype | None = None
    gpu_memory_utilization: Finite | None = None
    max_num_seqs: Whole | None = None
    max_num_batched_tokens: Whole | None = None
    block_size: Whole | None = None
    engine: str = DEFAULT_ENGINE
    num_gpu_blocks: Whole | None = None
    engine_log: str | None = None
    latency: str | None = None
    gpu_hour: Finite | None = None


def read_deployment(path: Path) -> Deployment:
    """Return the deployment in the file at `path`; paths in it are relative to its folder.

    Raises InputError with the file, the key, the value and the remedy.
    """
    table = table_as(document_in(path, _REMEDY), DeploymentTable, str(path), _REMEDY)
    values: dict[str, Any] = msgspec.structs.asdict(table)
    del values["schema"]
    for name in ("model", "latency", "engine_log"):
        near = path.parent / str(values[name])
        if values[name] is not None and ("/" in values[name] or near.is_file()) and near.exists():
            values[name] = str(near)
    with placed(str(path), InputError):
        return Deployment(**values)


def write_deployment(path: Path, deployment: Deployment) -> None:
    """Write `deployment` to `path`, so that reading it returns the same."""
    values = {field.name: getattr(deployment, field.name) for field in fields(deployment)}
    write_toml(path, DeploymentTable(**values))
