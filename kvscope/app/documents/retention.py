"""The document of `kvscope retention`."""

from __future__ import annotations

from typing import Literal

from kvscope.app.documents.base import Document, Facts, ModelFacts, TraceFacts, model_facts
from kvscope.app.retention import (
    CategoryTtl,
    Retention,
    TtlPoint,
    stated_ttl,
)
from kvscope.core.hits import HitDefinition
from kvscope.retention.advice import RetentionAdvice
from kvscope.retention.prices import Charge
from kvscope.retention.request_fields import RequestField, request_fields


class ChargeFacts(Facts):
    """What a provider would charge for the input; prices relative to a plain input token's.

    `cost_ratio` is the charge over that without caching; `storage` is in plain input tokens.
    """

    provider: str
    offer: str
    ttl_s: float
    write: float
    read: float
    minimum_tokens: int
    read_tokens: int
    written_tokens: int
    storage: float
    cost_ratio: float
    note: str
    source: str


class RetentionDocument(Document):
    """Times to live (TTL): what each hits and holds, the best by category, and prices.

    A `ttl_s` of null means forever, or that no capacity was named. `request_fields` are empty where
    LRU is to be kept.
    """

    command: Literal["retention"] = "retention"
    trace: TraceFacts
    model: ModelFacts | None
    definition: HitDefinition
    ttls: tuple[TtlPoint, ...]
    curve: tuple[TtlPoint, ...]
    most: TtlPoint
    categories: tuple[CategoryTtl, ...]
    advice: tuple[RetentionAdvice, ...]
    request_fields: tuple[RequestField, ...]
    prices_date: str
    charges: tuple[ChargeFacts, ...]


def retention_document(result: Retention) -> RetentionDocument:
    """Return the document of `kvscope retention`."""
    ttl_s = stated_ttl(result)
    return RetentionDocument.build(
        result,
        trace=TraceFacts.build(result.trace),
        model=model_facts(result.model),
        ttls=result.landmarks,
        request_fields=() if ttl_s is None else request_fields(ttl_s),
        charges=tuple(_charge(charge) for charge in result.charges),
    )


def _charge(charge: Charge) -> ChargeFacts:
    return ChargeFacts.build(charge, charge.offer, offer=charge.offer.name)
