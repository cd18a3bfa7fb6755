"""JSON formats with one object per line, as msgspec decodes them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from kvscope.core.trace import Directives, Part
from kvscope.ingest.formats.base import (
    Identifier,
    LineFormat,
    ReadOptions,
    Request,
    common_keys,
    in_seconds,
)


class ServiceRow(msgspec.Struct, gc=False, kw_only=True):
    """The keys that say how a request was served, in all formats of one JSON object per request.

    Times are decoded as ms and converted to s at once, as plain fields are faster to read.
    """

    model: str | None = None
    lora_id: Identifier | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    worker: Identifier | None = None
    ttft_s: float | None = msgspec.field(default=None, name="ttft_ms")
    queue_s: float | None = msgspec.field(default=None, name="queue_ms")
    duration_s: float | None = msgspec.field(default=None, name="duration_ms")
    cached_tokens: int | None = None
    repeated_tokens: int | None = None
    parts: list[Part] | None = None
    retention: Directives | None = None

    @property
    def adapter(self) -> Identifier | None:
        """The LoRA adapter; 0 and "" are the model itself."""
        return self.lora_name or self.lora_id

    def __post_init__(self) -> None:
        """Convert times from ms to s, without a call for missing times, as most rows have none."""
        if self.ttft_s is not None:
            self.ttft_s = in_seconds(self.ttft_s)
        if self.queue_s is not None:
            self.queue_s = in_seconds(self.queue_s)
        if self.duration_s is not None:
            self.duration_s = in_seconds(self.duration_s)


class RowFormat(LineFormat):
    """A format whose lines are decoded as the struct `row`, with `hash_ids` as JSON text.

    `redundant`: keys that are not read, as they repeat what other keys say.
    """

    row: ClassVar[type[msgspec.Struct]]
    redundant: ClassVar[frozenset[str]] = frozenset()  # fields that repeat what others say

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._decode = msgspec.json.Decoder(self.row).decode

    @classmethod
    def unread(cls, head: bytes) -> list[str]:
        """Return, by name, the `common_keys` of `head` that neither `row` nor `redundant` has."""
        known = {field.encode_name for field in msgspec.structs.fields(cls.row)}
        return sorted(common_keys(head) - known - cls.redundant)

    @abstractmethod
    def request(self, row: Any) -> Request | None:
        """Return the request of a line, None for a header, a tool's event and the like.

        Raises BadLine with the reason if the line cannot be used.
        """

    def parse(self, line: bytes) -> Sequence[Request] | None:
        """Return the line's request as a tuple of one, None for a line without a request."""
        request = self.request(self._decode(line))
        return None if request is None else (request,)
