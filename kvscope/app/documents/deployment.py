"""The document of `kvscope deployment`."""

from __future__ import annotations

from typing import Literal

from kvscope.app.documents.base import Document, Facts
from kvscope.app.documents.runs import LatencyFacts
from kvscope.deployment.deployment import ResolvedDeployment


class TermFacts(Facts):
    """A term of a derived pool: bytes on each GPU, negative where it takes memory."""

    name: str
    bytes: int
    band_bytes: int
    rule: str


class PoolFacts(Facts):
    """The KV blocks of one replica that requests can use, and the least and most they may be.

    `num_gpu_blocks` is the engine's own count, with the blocks it keeps to itself.
    """

    blocks: int
    low_blocks: int
    high_blocks: int
    num_gpu_blocks: int
    block_size: int
    tokens: int
    origin: str
    terms: tuple[TermFacts, ...]


class DeploymentLatencyFacts(LatencyFacts):
    """The latency profile of one replica; a decision has to hold at both factors."""

    source: str
    origin: str
    low_factor: float
    high_factor: float


class DeploymentDocument(Document):
    """A deployment and what follows from it."""

    command: Literal["deployment"] = "deployment"
    summary: str
    gpu: str | None
    tp: int
    replicas: int
    gpus: int
    traffic: str
    model: str | None
    weight_dtype: str | None
    kv_dtype: str | None
    engine: str
    gpu_memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    pool: PoolFacts
    latency: DeploymentLatencyFacts
    gpu_hour: float | None
    price_hour: float | None
    switchable: bool
    not_switchable: str | None
    notes: tuple[str, ...]


def deployment_document(deployment: ResolvedDeployment) -> DeploymentDocument:
    """Return the document of a deployment."""
    model, pool, profile = deployment.model, deployment.pool, deployment.latency
    return DeploymentDocument.build(
        deployment,
        gpu=deployment.gpu.name if deployment.gpu else None,
        model=model.name if model else None,
        weight_dtype=model.weight_dtype if model else None,
        kv_dtype=model.dtype if model else None,
        engine=str(deployment.engine),
        gpu_hour=deployment.stated.gpu_hour,
        pool=PoolFacts.build(pool, terms=tuple(map(TermFacts.build, pool.terms))),
        latency=DeploymentLatencyFacts.build(
            profile,
            profile=profile.name,
            origin=deployment.latency_origin,
            low_factor=deployment.latency_low,
            high_factor=deployment.latency_high,
        ),
    )
