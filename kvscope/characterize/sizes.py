"""Sizes of requests: tokens of prompts and outputs, blocks, and how deep an infinite cache hits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from kvscope.characterize.distributions import Summary, Turns, Weighted, quantiles
from kvscope.characterize.history import by_requests
from kvscope.core.arrays import Float64s, Int64s
from kvscope.core.disk_columns import in_order
from kvscope.core.trace import Trace
from kvscope.store.db import Store

_SIZES = ("input", "output", "tokens", "hit_blocks", "prompt_share")  # as the query numbers them
_PERCENTS = np.array([50, 80, 90, 99])


class SizeSummaries(Struct, frozen=True):
    """Sizes of requests of one kind; `tokens` and `blocks` are those of prompt and output.

    `hit_blocks` of an infinite cache, and their tokens as a share of the prompt's.
    """

    turns: Turns
    requests: int
    input: Summary
    output: Summary
    tokens: Summary
    blocks: Summary
    hit_blocks: Summary
    prompt_share: Summary


def load_sizes(store: Store, trace: Trace, work: Path | None = None) -> tuple[SizeSummaries, ...]:
    """Return sizes of all requests, then of single-turn and of multi-turn ones, if there are any.

    What is sorted is kept in files in the folder `work`, where that is given.
    """
    size = {"block_size": trace.block_size}
    values = in_order(by_requests(store, trace, work, "request_values", **size), "value", work)
    of = Weighted(values["value"], values["requests"])

    def sort(part: slice) -> Int64s:
        return values["size"][part].astype(np.int64)

    def sort_by_turns(part: slice) -> Int64s:
        own: Int64s = 2 * sort(part) + values["multi_turn"][part]
        return own

    together = quantiles(of, sort, len(_SIZES), _PERCENTS)
    apart = quantiles(of, sort_by_turns, 2 * len(_SIZES), _PERCENTS)
    at = {None: together, False: apart[::2], True: apart[1::2]}
    rows = store.rows("characterize/request_sizes", trace_id=trace.trace_id, **size)
    return tuple(_sizes(row, at[row["multi_turn"]], trace.block_size) for row in rows)


def _sizes(row: dict[str, Any], at: Float64s, block_size: int) -> SizeSummaries:
    """Return a row's means and maxima with the quantiles, sizes × percents, of `at`."""
    quantiles_of = dict(zip(_SIZES, at.tolist(), strict=True))
    # Blocks grow with tokens, so that their quantiles are those of the tokens, in blocks.
    quantiles_of["blocks"] = [-(-tokens // block_size) for tokens in quantiles_of["tokens"]]
    turns: Turns = (
        "all" if row["multi_turn"] is None else "multi" if row["multi_turn"] else "single"
    )
    return SizeSummaries(
        turns=turns,
        requests=row["requests"],
        **{
            name: Summary(*map(float, (row[f"{name}_mean"], *values, row[f"{name}_max"])))
            for name, values in quantiles_of.items()
        },
    )
