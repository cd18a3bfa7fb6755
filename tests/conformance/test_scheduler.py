"""vLLM's whole scheduler, 16 requests in flight: the model takes the same steps."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.stepping import MIXES, both, fitting, stepped
from tests.long import long

pytestmark = pytest.mark.engine

SIZES = (16, 32)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(
    ("usable_blocks", "size", "requests"),
    [(80, 16, 250), (200, 32, 250), *(long(*case, 600) for case in product((80, 200, 600), SIZES))],
)
def test_every_step_agrees(
    tmp_path: Path, usable_blocks: int, size: int, requests: int, mix: str
) -> None:
    """The same requests run in each step, and the same blocks are free, in order.

    And each request has the same hit tokens, preemptions and time of its first token, with prompts
    in chunks and, in small pools, preemption.
    """
    trace = fitting(requests, usable_blocks + size, mix, size, usable_blocks)
    counts = stepped(*both(tmp_path, trace, size, usable_blocks))
    assert counts["hits"] > 0
    if usable_blocks == 80 and mix != "long prompts":
        assert counts["preemptions"] > 0


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(("usable_blocks", "requests"), [(80, 250), long(80, 600), long(300, 600)])
def test_every_overlapped_step_agrees(
    tmp_path: Path, usable_blocks: int, requests: int, mix: str
) -> None:
    """The same where each step is planned before the last one's tokens are known."""
    trace = fitting(requests, usable_blocks, mix, 16, usable_blocks)
    counts = stepped(*both(tmp_path, trace, 16, usable_blocks, overlapped=True))
    assert counts["hits"] > 0
    if usable_blocks == 80 and mix != "long prompts":
        assert counts["preemptions"] > 0


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{"tokens": 40}, {"tokens": 4096}, {"reserve": False, "tokens": 64}],
    ids=str,
)
def test_every_setting_agrees(tmp_path: Path, settings: dict[str, Any], overlapped: bool) -> None:
    """Small and large chunks, and prompts let in before all of them fits."""
    trace = fitting(200, len(settings), "chats", 16, 120)
    stepped(*both(tmp_path, trace, 16, 120, overlapped=overlapped, **settings))
