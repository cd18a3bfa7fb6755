"""Prompt parts in which prefixes break, that is, stop repeating tokens computed before.

Hashes locate a break only to a block. Of the parts in that block the first one counts that does not
end at the same token in the prompt with which the request is compared.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Bools, Int32s, Int64s
from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.core.trace import PromptParts, Prompts
from kvscope.replay.attribution import Attribution
from kvscope.replay.causes import COMPUTED, Cause

NEGLIGIBLE = 0.001
"""The largest share of the input tokens that is too small to be reported."""
_MOST_PARTS = 5
ANSWER = "assistant"
NEW_HEADS: tuple[Cause, ...] = ("growth", "cold")
"""Causes of new tokens that nothing avoids, unless they are of a head that could be shared."""
_MESSAGES = ("user", ANSWER, "tool result")
UNKNOWN, BEHIND = -1, -2
"""In place of the kind of a part: it is not known; the prompt ends before the break."""


class Break(Struct, frozen=True):
    """Where each of R prompts breaks for one cause, and the `tokens` lost behind the break.

    The break is at token `at`, in a part of kind `kind`, an index into `kinds` (-1: unknown).
    """

    at: Int64s
    kind: Int32s
    tokens: Int64s
    kinds: tuple[str, ...]

    def part(self, tokens: Int64s) -> str | None:
        """Return the known kind of parts in which most of the given lost tokens are, else None.

        `tokens` (R) is the field of that name, maybe with 0 for requests to leave out.
        """
        lost = np.bincount(self.kind + 1, tokens, minlength=len(self.kinds) + 1)[1:]
        return self.kinds[int(lost.argmax())] if lost.any() else None


class PartTotal(Struct, frozen=True):
    """The tokens lost behind breaks in one kind of parts.

    `share` (0-1) is of all input tokens, `requests` the number that lose tokens; `at_token` is the
    median position of the breaks. `causes` are those of the tokens, most tokens first. Of `growth`
    (new tokens after a prefix that was written before) and `cold` (new from the first block on),
    only tokens before the first message count, as of the system prompt and the tools.
    """

    part: str
    tokens: int
    share: float
    requests: int
    at_token: int
    causes: tuple[Cause, ...]


def breaks(
    prompts: Prompts, causes: Attribution, parts: PromptParts | None
) -> Mapping[Cause, Break]:
    """Return where prompts break, for each cause of new tokens; of unknown kind without `parts`.

    An edited conversation breaks in a part of the previous turn's prompt, or in its answer; prompts
    of different conversations break in a part of the prompt itself.
    """
    own, size = np.arange(len(prompts.leaf), dtype=np.int32), prompts.block_size
    if parts is None:
        root = np.zeros(1, dtype=np.int32)
        parts = PromptParts(np.zeros_like(own), root, root, root, (ANSWER,))
    kinds = (*parts.kinds, *{ANSWER}.difference(parts.kinds))
    answer = np.int32(kinds.index(ANSWER) if parts.last.any() else UNKNOWN)
    shared = causes.lookups.shared_with
    alike = np.where(shared < 0, own - 1, shared)
    known = causes.hit_tokens + sum(causes.tokens[cause] for cause in COMPUTED)
    changing = np.array([change.blocks * size for change in causes.heads.changes] or [0])
    periodic = changing[causes.heads.change]

    def found(of: Int32s, other: Int32s, at: Int64s) -> Int32s:
        kind = parts_at(parts, of, other, at, size)
        return np.where(kind == BEHIND, answer, kind)

    edited = causes.common_tokens, found(prompts.parent, own, causes.common_tokens)
    places: dict[Cause, tuple[Int64s, Int32s]] = {
        "periodic": (periodic, found(own, alike, periodic)),
        "template": edited,
        "diverged": edited,
        "output-changed": (edited[0], np.full_like(own, answer)),
    }
    lost = {cause: causes.tokens[cause] for cause in places}
    is_message = np.isin(np.array(kinds), _MESSAGES)
    begins = known, found(own, alike, known)
    in_head = (own > 0) & (begins[1] >= 0) & ~is_message[begins[1]] & (lost["periodic"] == 0)
    head = np.where(in_head, np.clip(ends_of_heads(parts, is_message) - known, 0, None), 0)
    for cause in NEW_HEADS:
        places[cause], lost[cause] = begins, np.minimum(causes.tokens[cause], head)
    return {cause: Break(*place, lost[cause], kinds) for cause, place in places.items()}


def part_totals(causes: Attribution, broken: Mapping[Cause, Break]) -> tuple[PartTotal, ...]:
    """Return up to five kinds of parts, most lost tokens first: each lost over 0.1 % of input."""
    inputs, names, totals = int(causes.input_tokens.sum()), tuple(broken), []
    at, kind, tokens = (
        np.stack([getattr(each, name) for each in broken.values()])
        for name in ("at", "kind", "tokens")
    )
    for number, part in enumerate(broken[names[0]].kinds):
        lost = np.where(kind == number, tokens, 0)
        by_cause = lost.sum(axis=1)
        if (total := int(by_cause.sum())) > NEGLIGIBLE * inputs:
            totals.append(
                PartTotal(
                    part=part,
                    tokens=total,
                    share=total / inputs,
                    requests=int(np.count_nonzero(lost.any(axis=0))),
                    at_token=int(np.median(at[lost > 0])),
                    causes=tuple(names[k] for k in np.argsort(-by_cause) if by_cause[k]),
                )
            )
    return tuple(sorted(totals, key=lambda each: -each.tokens)[:_MOST_PARTS])


def parts_at(
    parts: PromptParts, request: Int32s, other: Int32s, at: Int64s, block_size: int
) -> Int32s:
    """Return the kind of the part in which each `request` breaks, in the block from token `at` on.

    Kinds are indices into `parts.kinds`, UNKNOWN, or BEHIND if the prompt ends before. `other` (-1:
    none) is the request to compare the prompt with. All arrays have K entries.
    """
    kind = np.empty(len(request), dtype=np.int32)
    _find_parts(
        parts.above, parts.kind, parts.end, parts.last, request, other, at, block_size, kind
    )
    return kind


def ends_of_heads(parts: PromptParts, is_message: Bools) -> Int32s:
    """Return the token where each prompt's first message (`is_message` by kind) begins; 0: none."""
    ends = np.zeros(len(parts.last), dtype=np.int32)
    _find_heads(parts.above, is_message[parts.kind], parts.end, parts.last, ends)
    return ends


@kernel
def _find_parts(
    above: Int32s,
    kind: Int32s,
    end: Int32s,
    last: Int32s,
    request: Int32s,
    other: Int32s,
    at: Int64s,
    block_size: int,
    broken: Int32s,
) -> None:
    """Fill `broken` (K) with the kinds that `parts_at` returns, from a prompt's last part back.

    The columns are those of `PromptParts`: the last part of each prompt (`last`, R entries, 0 for
    none), and for each part the one before it (`above`), its `kind` and the token at its `end`.
    """
    for k in range(len(request)):
        broken[k] = UNKNOWN
        if request[k] < 0 or last[request[k]] == 0:
            continue
        part, begin, beyond = last[request[k]], at[k], at[k] + block_size
        if end[part] <= begin:
            broken[k] = BEHIND
            continue
        while part > 0 and end[part] > begin:
            overlaps = end[above[part]] < beyond
            if overlaps and (
                broken[k] == UNKNOWN
                or end[part] >= beyond
                or not _ends_alike(above, kind, end, last, other[k], part)
            ):
                broken[k] = kind[part]
            part = above[part]


@callable_in_kernels
def _ends_alike(
    above: Int32s, kind: Int32s, end: Int32s, last: Int32s, request: int, part: int
) -> bool:
    """Return whether a request has a part of the kind of `part` that ends at the same token.

    `part` is of another prompt; False for `request` -1. The columns are those of `PromptParts`:
    the part before each part (`above`), its `kind` and `end`, and each prompt's `last` part.
    """
    if request < 0:
        return False
    own = last[request]
    while end[own] > end[part]:
        own = above[own]
    return bool(own > 0 and end[own] == end[part] and kind[own] == kind[part])


@kernel
def _find_heads(
    above: Int32s, is_message: Bools, end: Int32s, last: Int32s, head_end: Int32s
) -> None:
    """Fill `head_end` (R, 0 at first) with the token at which each prompt's first message begins.

    `is_message` has an entry for each part; `above`, `end` and `last` are those of `PromptParts`.
    """
    for k in range(len(last)):
        part = last[k]
        while part > 0:
            if is_message[part]:
                head_end[k] = end[above[part]]
            part = above[part]
