"""Why input tokens missed: the names of the causes."""

from __future__ import annotations

from typing import Literal, get_args

Cause = Literal[
    "drafter",
    "evicted",
    "not-kept",
    "in-flight",
    "routed",
    "salt",
    "lora",
    "model",
    "periodic",
    "template",
    "diverged",
    "output-changed",
    "growth",
    "cold",
    "last-token",
    "below-block",
    "no-hash",
    "rejected",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)
"""In the order in which they appear in a prompt.

- drafter: hits without speculative decoding, which before vLLM 0.33 computes the last block of a
  hit again.
- evicted: written by an earlier request, and no longer cached.
- not-kept: written by an earlier request, but the layers of a hybrid model that look back a window
  keep none there: no eviction is to blame.
- in-flight: of an earlier request that had not computed them yet.
- routed: computed before by another worker. salt, lora, model: computed before under another cache
  salt, LoRA adapter or model.
- periodic: new, behind a block of a shared head that changes with the time.
- template: new, where the previous turn's prompt had the same messages: the chat template moved or
  changed them.
- diverged: new, where the previous turn's prompt had other blocks.
- output-changed: new, where the previous turn's output had stood.
- growth: new, after a prefix that was written before. cold: new from the first block on.
- last-token: full blocks that hold the prompt's last token. below-block: a partial last block.
- no-hash: the trace has no hashes for these tokens. rejected: longer than the whole pool.
"""

COMPUTED: tuple[Cause, ...] = (
    *("drafter", "evicted", "not-kept", "in-flight", "routed", "salt", "lora", "model"),
)
"""Causes of tokens that earlier requests of the trace have too."""

AVOIDABLE: tuple[Cause, ...] = (
    *("drafter", "evicted", "not-kept", "in-flight", "routed", "salt", "lora", "model", "periodic"),
    *("template", "diverged", "output-changed", "rejected"),
)
"""Causes that a larger cache, another router or another client could remove."""
