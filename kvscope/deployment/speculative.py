"""Speculative decoding: drafters, and their cost in prefix-cache hits.

Drafters that read the model's hidden states (MTP, EAGLE) keep KV of their own in the pool. Their KV
at the end of a block depends on the next token. Before 0.33, vLLM therefore recomputes the last
block of each hit; since then a block's hash covers the next token. Hashes of a trace do not: in the
engine, a hit may be one block shorter if two prompts differ right after a block.

Source: vLLM 0.33.0, vllm/config/speculative.py (use_eagle, use_eagle_block_drop) and
vllm/config/vllm.py (num_lookahead_tokens, num_hash_lookahead_tokens).
"""

from __future__ import annotations

import json
import re
from typing import Literal, get_args

from msgspec import Struct

from kvscope.core.errors import UsageError

DraftMethod = Literal["mtp", "eagle", "eagle3", "ngram"]
METHODS: tuple[DraftMethod, ...] = get_args(DraftMethod)
_WRITTEN = re.compile(r"([a-z]+\d?)(?::(\w*))?(?:@(.*))?")
_USUAL_BLOCK = 16  # vLLM's, on a GPU
_MOST_TOKENS = 64  # drafted in a step; engines use 1 to 16


class Drafter(Struct, frozen=True):
    """A drafter that proposes `tokens` tokens in each step.

    A step yields `per_step` tokens on average: the accepted drafts and one of the model's own. A
    block of the engine has `block_tokens` tokens.
    """

    method: DraftMethod
    tokens: int
    per_step: float = 1.0
    block_tokens: int = _USUAL_BLOCK

    def __str__(self) -> str:
        return f"{self.method}:{self.tokens}"

    @property
    def reads_states(self) -> bool:
        """Whether the drafter reads the model's hidden states, and so has KV."""
        return self.method != "ngram"

    def drops(self, block_size: int) -> int:
        """Return the tokens that hits lose: an engine block, rounded to whole trace blocks.

        0 for a drafter without KV, and if trace blocks are more than twice as long as the engine's:
        rounding hits down to trace blocks then costs more already.
        """
        return int(self.block_tokens / block_size + 0.5) * block_size if self.reads_states else 0

    @property
    def config(self) -> str:
        """The value of vLLM's --speculative-config; for EAGLE, replace DRAFTER by its head."""
        known: dict[str, object] = {"method": self.method, "num_speculative_tokens": self.tokens}
        if self.method.startswith("eagle"):
            known["model"] = "DRAFTER"
        return json.dumps(known, separators=(",", ":"))


def not_beside(drafter: object, what: str, where: str = "--speculative") -> UsageError:
    """Return the error of option `where` for a feature, `what`, not simulated with a drafter."""
    remedy = "take --speculative none: hits are then those without a drafter"
    if where != "--speculative":
        remedy = "leave it out, or take --speculative none"
    return UsageError(f"{drafter} beside {what} is not simulated", where=where, remedy=remedy)


def parse_drafter(text: str) -> Drafter | None:
    """Return the drafter that METHOD:TOKENS@PER_STEP names, None for `none`.

    TOKENS defaults to 1 for MTP, PER_STEP to 1; `block_tokens` is 16, vLLM's default. Raises
    UsageError for an unknown method, TOKENS missing or not 1-64, or PER_STEP not 1 to TOKENS + 1.
    """
    match = _WRITTEN.fullmatch(text.strip().lower())
    if match is not None and match[0] == "none":
        return None
    method = next((each for each in METHODS if match and match[1] == each), None)
    if match is None or method is None:
        raise UsageError(f"no method {text!r}", remedy=f"write {', '.join(METHODS)}, as in mtp:3")
    if match[2] is None and method != "mtp":
        raise UsageError(f"{method} drafts a number of tokens", remedy=f"write {method}:3 for 3")
    written = match[2] or "1"
    if not written.isdecimal() or not 1 <= int(written) <= _MOST_TOKENS:
        raise UsageError(f"{written} tokens a step", remedy=f"give 1 to {_MOST_TOKENS}")
    tokens = int(written)
    try:
        per_step = 1.0 if match[3] is None else float(match[3])
    except ValueError:
        per_step = 0.0
    if not 1 <= per_step <= tokens + 1:
        raise UsageError(
            f"{match[3] or 'nothing'} behind @ is no mean of tokens that a step yields",
            remedy=f"give 1 to {tokens + 1}: those accepted and one more",
        )
    return Drafter(method, tokens, per_step)
