"""SGLang's request logs with prompts: exported metrics, and JSON lines of its request logger.

`--export-metrics-to-file` writes a line per finished request; `--log-requests --log-requests-level
3 --log-requests-format json` logs finished requests and other events, with the time in brackets in
front. Lines have latencies with `--enable-metrics`.
Source: sglang 0.5.23, sglang/srt/observability/request_metrics_exporter.py,
sglang/srt/utils/request_logger.py, log_utils.py, srt/managers/tokenizer_manager.py (meta_info).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvscope.chat_logs.formats.base import LoggedRequest
from kvscope.chat_logs.formats.openai import OpenAI
from kvscope.ingest.formats.base import BadLine, Identifier, described, moment

_FINISHED = "request.finished"
_OTHERS = "log records of other events than a finished request"
_FAILED = "requests that were aborted"


class _ServerRequest(msgspec.Struct, gc=False, kw_only=True):
    """A request in the form of SGLang's server."""

    text: Any = None
    input_ids: Any = None
    session_id: Identifier | None = None
    conversation_id: Identifier | None = None
    lora_path: Any = None
    cache_salt: Any = None
    routed_dp_rank: int | None = None
    modalities: list[Any] | None = None


class _MetaInfo(msgspec.Struct, gc=False, kw_only=True):
    finish_reason: Any = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    request_received_ts: float | None = None
    first_token_latency: float | None = None
    queue_time: float | None = None
    e2e_latency: float | None = None


class _Output(msgspec.Struct, gc=False):
    meta_info: _MetaInfo | None = None


class _Exported(_MetaInfo, gc=False, kw_only=True):
    """A line of exported metrics; with an `event`, the logger's (request `obj`, response `out`)."""

    request_parameters: str | None = None
    event: str | None = None
    timestamp: Any = None
    obj: _ServerRequest | None = None
    out: _Output | None = None


class SGLang(OpenAI):
    """JSON lines with `request_parameters`, or with `event`, `obj` and `out`."""

    name = "sglang"
    summary = "SGLang's exported request metrics, or its request log as JSON"
    marks = ("request_parameters", "event obj")

    def __init__(self) -> None:
        super().__init__()
        self._decode = msgspec.json.Decoder(_Exported).decode
        self._parameters = msgspec.json.Decoder(_ServerRequest).decode

    def parse(self, line: bytes) -> Sequence[LoggedRequest]:
        """Return the line's request; () for aborted requests and other events."""
        row = self._decode(line)
        meta: _MetaInfo = row
        parameters = row.obj
        if row.request_parameters is not None:
            parameters = self._parameters(row.request_parameters)
        elif row.event != _FINISHED:
            self.left_out[_OTHERS] += 1
            return ()
        else:
            meta = (row.out or _Output()).meta_info or _MetaInfo()
        if parameters is None:
            raise BadLine("Object missing required field `request_parameters`")
        reason = meta.finish_reason
        if isinstance(reason, dict) and reason.get("type") == "abort":
            self.left_out[_FAILED] += 1
            return ()
        if set(map(str, parameters.modalities or ())) - {"text"}:
            raise BadLine(f"a prompt that is not only text: {described(parameters.modalities)}")
        session, salt = parameters.session_id, parameters.cache_salt
        return self.served(
            {"prompt": parameters.text if parameters.input_ids is None else parameters.input_ids},
            len(line),
            input_tokens=meta.prompt_tokens,
            output_tokens=meta.completion_tokens,
            cached_tokens=meta.cached_tokens,
            arrival_s=_arrival_s(row, meta),
            ttft_s=meta.first_token_latency,
            queue_s=meta.queue_time,
            duration_s=meta.e2e_latency,
            session_id=parameters.conversation_id if session is None else session,
            adapter=parameters.lora_path if isinstance(parameters.lora_path, str) else None,
            cache_salt=salt if isinstance(salt, str) else None,
            worker=parameters.routed_dp_rank,
        )


def _arrival_s(row: _Exported, meta: _MetaInfo) -> float | None:
    """Return the arrival time: as measured, else the end less the latency; None if unknown."""
    if meta.request_received_ts is not None:
        return moment(meta.request_received_ts, "request_received_ts")
    ended_s = moment(row.timestamp, "timestamp")
    return None if ended_s is None else moment(ended_s - (meta.e2e_latency or 0.0), "e2e_latency")
