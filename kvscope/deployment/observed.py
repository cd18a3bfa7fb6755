"""The KV pool as an engine reports it: in its start-up log, or in its metrics.

| text | meaning |
|---|---|
| `num_gpu_blocks="27000"` in `vllm:cache_config_info` | vLLM's blocks, block 0 included |
| `num_gpu_blocks_override=1213`, `# GPU blocks: 5519`, `# cuda blocks: 5519` | the same |
| `GPU KV cache size: 163,168 tokens` | blocks times block size; not for hybrid models |
| `Available KV cache memory: 8.11 GiB` | bytes of one GPU, one line for each |
| `max_total_num_tokens=445871` | SGLang's tokens |

For hybrid models vLLM's cache size is the number of longest requests times their length, not the
pool (vllm#54662). The last start in a log counts.

Source: vLLM 0.33.0, vllm/v1/core/kv_cache_utils.py, vllm/v1/engine/core.py and
vllm/v1/metrics/loggers.py (0.8: vllm/executor/executor_base.py); SGLang,
python/sglang/srt/managers/scheduler.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path

from kvscope.core.errors import InputError
from kvscope.deployment.engines import parse_engine
from kvscope.deployment.gpus import GIB
from kvscope.deployment.models import Model
from kvscope.deployment.pool import KvPool, PoolOrigin

_COUNT = r"(?P<value>[\d,]+)"
_METRICS = re.compile(r'^vllm:cache_config_info\{.*num_gpu_blocks="(?P<value>\d+)"')
_OVERRIDE = re.compile(rf"num_gpu_blocks_override[=: ]+{_COUNT}")
_BLOCKS = re.compile(rf"# (?:gpu|cuda) blocks: {_COUNT}", re.IGNORECASE)
_TOKENS = re.compile(rf"GPU KV cache size: {_COUNT} tokens")
_BYTES = re.compile(r"Available KV cache memory: (?P<value>[\d.]+) GiB")
_SGLANG = re.compile(r"max_total_num_tokens(?:=|\{[^}]*\} )(?P<value>[\d,.e+]+)")
_BLOCK_SIZE = re.compile(r"\bblock_size['\"]?[=:]\s*['\"]?(?P<value>\d+)")
_PATTERNS = (_METRICS, _OVERRIDE, _BLOCKS, _TOKENS, _BYTES, _SGLANG)
_LONGEST_LINE = 2**20
_MOST = 2**53  # blocks, tokens or GiB


def observed_pool(
    path: Path, *, model: Model | None = None, tp: int = 1, block_size: int | None = None
) -> KvPool:
    """Return the pool that the log or the saved metrics at `path` report.

    Raises InputError for a file that cannot be read or reports none.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            bounded = iter(lambda: lines.readline(_LONGEST_LINE), "")
            return pool_in(bounded, str(path), model=model, tp=tp, block_size=block_size)
    except OSError as error:
        what = error.strerror or "cannot be read"
        raise InputError(what, where=str(path), remedy="name an engine's log") from error


def pool_in(
    lines: Iterable[str],
    where: str,
    *,
    model: Model | None = None,
    tp: int = 1,
    block_size: int | None = None,
) -> KvPool:
    """Return the pool that `lines` report, in blocks of `block_size` or of what they state.

    The size in bytes needs `model`, whose KV of a token on one of `tp` GPUs divides it.
    """
    reports: dict[re.Pattern[str], list[float]] = {}
    stated_size = None
    for line in lines:
        for pattern in _PATTERNS:
            if (match := pattern.search(line)) is not None:
                reports.setdefault(pattern, []).append(_number(match["value"], where))
        if (match := _BLOCK_SIZE.search(line)) is not None:
            stated_size = int(_number(match["value"], where))
    sglang = _SGLANG in reports
    engine = parse_engine("sglang" if sglang else "vllm")
    size = stated_size or block_size or engine.default_block_size
    origin: PoolOrigin = "metrics" if _METRICS in reports else "engine log"
    if sglang:
        blocks = int(reports[_SGLANG][-1]) // size
    else:
        blocks = _vllm_blocks(reports, size, model, tp, where) - engine.null_blocks
    if blocks < 1:
        raise InputError("no block for requests", where=where, remedy="name another start's log")
    notes = () if stated_size or block_size or sglang else (f"blocks of {size} tokens assumed",)
    return KvPool(blocks, blocks, blocks, size, origin, engine.null_blocks, notes=notes)


def _number(text: str, where: str) -> float:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not 0 <= value < _MOST:
        raise InputError(
            f"{text[:40]!r} is not the size of a pool", where=where, remedy="name another log"
        )
    return value


def _vllm_blocks(
    reports: dict[re.Pattern[str], list[float]],
    size: int,
    model: Model | None,
    tp: int,
    where: str,
) -> int:
    for pattern in (_METRICS, _OVERRIDE, _BLOCKS):
        if pattern in reports:
            return int(reports[pattern][-1])
    hybrid = model is not None and model.hybrid
    if _TOKENS in reports and not hybrid:
        return int(reports[_TOKENS][-1]) // size
    if _BYTES in reports and model is not None and model.uniform:
        smallest = min(reports[_BYTES][-tp:])
        return int(smallest * GIB // (model.by_block.kv_bytes_per_token(tp) * size))
    if hybrid and (_TOKENS in reports or _BYTES in reports):
        raise InputError(
            "the cache size of a hybrid model is not its pool",
            where=where,
            remedy="save the text of /metrics, which has num_gpu_blocks, or state --num-gpu-blocks",
        )
    raise InputError(
        "reports no KV pool",
        where=where,
        remedy="name a log with 'GPU KV cache size', or the saved text of /metrics",
    )
