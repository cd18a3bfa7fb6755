"""Requests by the thousand, as arrays; and what must hold of a request in any format."""

from __future__ import annotations

import numpy as np

from kvscope.ingest.base import BadLine, Request
from kvscope.ingest.hash_ids import decoded, gathered

INT32_MAX = 2**31 - 1
LONGEST_S = 1e12
"""Beyond any clock: some 30,000 years, in whole microseconds less than 2^63 of them."""


class Batch:
    """Requests with the numbers of theirs that are counted with, a field at a time.

    Path k is ids[starts[k]:starts[k + 1]]; requests that tell no turn have 0, those that tell no
    arrival or delay are left out of `arrivals_s` and `delays_s`. Raises BadLine or
    OverflowError where a request is none that `check` lets pass.
    """

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.input_tokens = np.array([one.input_tokens for one in requests], dtype=np.int64)
        self.output_tokens = np.array([one.output_tokens for one in requests], dtype=np.int64)
        turns = [one.turn if one.turn and one.turn > 0 else 0 for one in requests]
        self.turn = np.array(turns, dtype=np.int64)
        self.arrivals_s = [one.arrival_s for one in requests if one.arrival_s is not None]
        delays = [one.delay_s for one in requests if one.delay_s is not None]
        self.delays_s = np.array(delays, dtype=np.float64)
        self.starts, self.ids = gathered([one.hash_ids for one in requests])
        self.blocks = np.diff(self.starts)

    def is_sound(self, block_size: int) -> bool:
        """Whether `check` lets every request pass; False may also mean that it is to be asked."""
        requests, inputs, outputs = self.requests, self.input_tokens, self.output_tokens
        return bool(
            {one.block_size for one in requests} <= {None, block_size}
            and ((inputs >= 1) & (inputs <= INT32_MAX)).all()
            and ((outputs >= 0) & (outputs <= INT32_MAX - inputs)).all()
            and (self.turn <= INT32_MAX).all()
            and (np.abs(self.arrivals_s) <= LONGEST_S).all()
            and (self.delays_s >= 0).all()
            and (self.delays_s <= LONGEST_S).all()
            and ((self.blocks - 1) * block_size < inputs).all()
        )


def check(request: Request, block_size: int) -> None:
    """Raise BadLine where `request` cannot be used, in a trace with blocks of `block_size`.

    Its hash ids are decoded on the way, if they are not yet.
    """
    request.hash_ids = decoded(request.hash_ids)
    inputs, outputs = request.input_tokens, request.output_tokens
    if not 1 <= inputs <= INT32_MAX:
        raise BadLine(f"input tokens must be 1 or more: {inputs}")
    if not 0 <= outputs <= INT32_MAX - inputs:
        raise BadLine(f"output tokens must be 0 or more: {outputs}")
    if request.arrival_s is not None and not abs(request.arrival_s) <= LONGEST_S:
        raise BadLine(f"arrival time must be within {LONGEST_S:g} s of 0: {request.arrival_s:g} s")
    if request.delay_s is not None and not 0 <= request.delay_s <= LONGEST_S:
        raise BadLine(f"delay must be 0 to {LONGEST_S:g} s: {request.delay_s:g} s")
    if request.turn is not None and request.turn > INT32_MAX:
        raise BadLine(f"turn must be below 2^31: {request.turn}")
    size = block_size if request.block_size is None else request.block_size
    if not 1 <= size <= INT32_MAX:
        raise BadLine(f"block size must be 1 or more: {size}")
    if size != block_size:
        raise BadLine(f"block size differs within the trace: {size} after {block_size}")
    count = len(request.hash_ids or ())
    if count and (count - 1) * size >= inputs:
        raise BadLine(
            f"more hash ids than the prompt has blocks: {count} ids, but {inputs} tokens"
            f" are {-(-inputs // size)} blocks of {size} (is --block-size right?)"
        )
