"""The part in which a prompt breaks: the kernels against plain Python, on random parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.trace import Part, PromptParts
from kvscope.ingest.columns import Columns
from kvscope.ingest.formats.base import ReadOptions, Records, Rejects, Request
from kvscope.replay.prompt_parts import BEHIND, UNKNOWN, ends_of_heads, parts_at

MESSAGES = ("user", "assistant")
KINDS = ("system", "tool 1", *MESSAGES)


@st.composite
def drawn(draw: st.DrawFn) -> list[list[Part]]:
    """Draw prompts as parts, many of which begin as an earlier one does."""
    prompts: list[list[Part]] = []
    for _ in range(draw(st.integers(1, 6))):
        before = draw(st.sampled_from([[], *prompts]))
        prompt = before[: draw(st.integers(0, len(before)))]
        for _ in range(draw(st.integers(0, 4))):
            at = prompt[-1].end if prompt else 0
            prompt = [*prompt, Part(draw(st.sampled_from(KINDS)), at + draw(st.integers(1, 6)))]
        prompts.append(prompt)
    return prompts


def tree(prompts: Sequence[list[Part]]) -> PromptParts:
    """Return the parts as a trace has them."""
    columns = Columns(4, ReadOptions(), Rejects("", strict=True))
    told = [Request(input_tokens=99, output_tokens=0, parts=parts or None) for parts in prompts]
    columns.add(Records.one_each(1, told))
    last = columns.arrays()["parts"]
    kinds = tuple(columns.names["part"])
    return PromptParts(np.maximum(last, 0).astype(np.int32), *columns.parts, kinds)


def expected(own: list[Part], other: list[Part] | None, at: int, size: int) -> int | str:
    """Return the kind of the part in which a block breaks, as the definition says."""
    if not own:
        return UNKNOWN
    begins = [0, *(part.end for part in own)]
    inside = [
        part
        for part, begin in zip(own, begins, strict=False)
        if part.end > at and begin < at + size
    ]
    broken = [part for part in inside if part.end >= at + size or part not in (other or ())]
    return (broken or inside[-1:])[0].kind if inside else BEHIND


@settings(deadline=None, max_examples=80)
@given(drawn(), st.data())
def test_kernels_find_what_plain_python_finds(
    prompts: list[list[Part]], data: st.DataObject
) -> None:
    """Of any prompt against any other one or none, at any block; and where the head ends."""
    made = tree(prompts)
    assert [made.of(k) or [] for k in range(len(prompts))] == prompts
    count, size = len(prompts), data.draw(st.integers(1, 8))
    numbers = st.lists(st.integers(-1, count - 1), min_size=count, max_size=count)
    own, other = data.draw(numbers), data.draw(numbers)
    at = data.draw(st.lists(st.integers(0, 24), min_size=count, max_size=count))
    found = parts_at(made, *(np.array(x, dtype=np.int32) for x in (own, other, at)), size)
    for k, kind in enumerate(found.tolist()):
        prompt = prompts[own[k]] if own[k] >= 0 else []
        against = prompts[other[k]] if other[k] >= 0 else None
        known = expected(prompt, against, at[k], size)
        assert (made.kinds[kind] if kind >= 0 else kind) == known
    heads = []
    for prompt in prompts:
        begins = [0, *(part.end for part in prompt)]
        first = next((k for k, part in enumerate(prompt) if part.kind in MESSAGES), None)
        heads.append(0 if first is None else begins[first])
    is_message = np.array([kind in MESSAGES for kind in made.kinds] or [False])
    assert ends_of_heads(made, is_message).tolist() == heads
