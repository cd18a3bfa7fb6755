"""Helicone's exports with bodies: JSON lines of its request table.

Source: Helicone/helicone, examples/export/typescript (05a819c) and HeliconeRequest (lib/stores).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvscope.chat_logs.formats.base import LoggedRequest
from kvscope.chat_logs.formats.openai import OpenAI
from kvscope.ingest.formats.base import BadLine, described

_NO_REFERENCE = frozenset({"", "00000000-0000-0000-0000-000000000000"})
_SESSION = "Helicone-Session-Id"


class _HeliconeRow(msgspec.Struct, gc=False):
    request_created_at: str
    request_body: Any = None
    response_body: Any = None
    response_status: int | None = None
    request_user_id: str | None = None
    request_properties: dict[str, Any] | None = None
    request_model: str | None = None
    delay_ms: float | None = None
    time_to_first_token: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cache_reference_id: str | None = None


class Helicone(OpenAI):
    """JSON lines with `request_created_at` and `request_body`."""

    name = "helicone"
    summary = "Helicone exports with bodies (npx @helicone/export --include-body)"
    marks = ("request_created_at request_body",)

    def __init__(self) -> None:
        super().__init__()
        self._decode = msgspec.json.Decoder(_HeliconeRow).decode

    def parse(self, line: bytes) -> Sequence[LoggedRequest]:
        """Return the row's requests; () for calls that failed or that Helicone's cache answered."""
        row = self._decode(line)
        if row.response_status is not None and not 200 <= row.response_status < 300:
            self.left_out["calls that failed"] += 1
            return ()
        if (row.cache_reference_id or "") not in _NO_REFERENCE:
            self.left_out["calls answered by Helicone's own cache"] += 1
            return ()
        body = row.request_body
        if isinstance(body, str) and body.startswith("{"):
            body = msgspec.json.decode(body)
        if not isinstance(body, dict) or not body.keys() & {"messages", "prompt", "input"}:
            raise BadLine(f"bodies were not exported (--include-body): {described(body)}")
        fields = {
            "request": body,
            "response": row.response_body or {},
            "timestamp": row.request_created_at,
            "duration_ms": row.delay_ms,
            "ttft_ms": row.time_to_first_token or None,
            "session_id": (row.request_properties or {}).get(_SESSION),
            "user_id": row.request_user_id,
            "prompt_tokens": row.prompt_tokens,
            "completion_tokens": row.completion_tokens,
        }
        model = {} if row.request_model is None else {"model": row.request_model}
        return self.requests(model | fields, len(line))
