"""The document of `kvscope deployment`."""

from __future__ import annotations

from typing import Literal

from kvscope.app.documents.base import Document, Facts
from kvscope.deployment.deployment import ResolvedDeployment


class TermFacts(Facts):
    """A term of a derived pool: bytes on each GPU, negative where it takes memory."""

    name: str
    bytes: int
    band_bytes: int
    rule: str


class PoolFacts(Facts):
    """The KV blocks of one replica that requests can use, and the least and most they may be.

    `source` is stated, engine log, metrics or derived. `num_gpu_blocks` is the engine's own count,
    with the blocks it keeps to itself.
    """

    value: int
    low: int
    high: int
    source: str
    num_gpu_blocks: int
    block_size: int
    tokens: int
    terms: tuple[TermFacts, ...]


class LatencyFacts(Facts):
    """TTFT = base + max(floor, per_token u) + per_token_pair u (c + u / 2).

    For u uncached and c cached tokens; `request_ms` of the base pass outside of the engine's steps.
    A step that only decodes takes decode_base + decode_request for each request +
    decode_context_token for each token before; decode_base null: as a prompt's step.
    """

    profile: str
    base_ms: float
    per_token_ms: float
    per_token_pair_ms: float
    floor_ms: float
    request_ms: float
    decode_base_ms: float | None
    decode_request_ms: float
    decode_context_token_ms: float


class DeploymentLatencyFacts(LatencyFacts):
    """The latency profile of one replica; a decision has to hold at `low` and `high` times it.

    `source` is measured, stated or derived.
    """

    source: str
    low: float
    high: float


class DeploymentFacts(Facts):
    """A deployment and what follows from it; times are those of one replica."""

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
    pool_blocks: PoolFacts
    latency: DeploymentLatencyFacts
    gpu_hour: float | None
    price_hour: float | None
    switchable: bool
    not_switchable: str | None
    notes: tuple[str, ...]


class DeploymentDocument(Document, DeploymentFacts):
    """What `kvscope deployment` shows."""

    command: Literal["deployment"] = "deployment"


def deployment_document(deployment: ResolvedDeployment) -> DeploymentDocument:
    """Return the document of a deployment."""
    return DeploymentDocument.build(deployment_facts(deployment))


def deployment_facts(deployment: ResolvedDeployment) -> DeploymentFacts:
    """Return what documents say of a deployment."""
    model, pool, profile = deployment.model, deployment.pool, deployment.latency
    return DeploymentFacts.build(
        deployment,
        gpu=deployment.gpu.name if deployment.gpu else None,
        model=model.name if model else None,
        weight_dtype=model.weight_dtype if model else None,
        kv_dtype=model.dtype if model else None,
        engine=str(deployment.engine),
        gpu_hour=deployment.stated.gpu_hour,
        pool_blocks=PoolFacts.build(
            pool,
            value=pool.blocks,
            low=pool.low_blocks,
            high=pool.high_blocks,
            source=pool.origin,
            terms=tuple(map(TermFacts.build, pool.terms)),
        ),
        latency=DeploymentLatencyFacts.build(
            profile,
            profile=profile.name,
            source=deployment.latency_origin,
            low=deployment.latency_low,
            high=deployment.latency_high,
        ),
    )
