"""An engine's blocks and requests as far as the plugin looks at them, without an engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvscope.core.prefix import paths
from kvscope.replay.traffic import Traffic


@dataclass(eq=False)
class FakeBlock:
    """As vLLM's KVCacheBlock."""

    block_id: int
    block_hash: Any = None
    block_hash_num_tokens: int | None = None
    ref_cnt: int = 0
    prev_free_block: Any = None
    next_free_block: Any = None

    def hold(self, key: Any, tokens: int) -> FakeBlock:
        """Return the block with content."""
        self.block_hash, self.block_hash_num_tokens = key, tokens
        return self


class LruQueue:
    """As vLLM's FreeKVCacheBlockQueue."""

    def __init__(self, blocks: list[FakeBlock]) -> None:
        self._blocks = blocks

    @property
    def num_free_blocks(self) -> int:
        """How many there are."""
        return len(self._blocks)

    def popleft_n(self, count: int) -> list[FakeBlock]:
        """Take the first ones."""
        assert count <= len(self._blocks)
        taken, self._blocks = self._blocks[:count], self._blocks[count:]
        return taken

    def remove(self, block: FakeBlock) -> None:
        """Take out one of them."""
        self._blocks.remove(block)

    def append_n(self, blocks: list[FakeBlock]) -> None:
        """Add some at the end."""
        self._blocks = [*self._blocks, *blocks]

    def prepend_n(self, blocks: list[FakeBlock]) -> None:
        """Add some in front."""
        self._blocks = [*blocks, *self._blocks]

    def get_all_free_blocks(self) -> list[FakeBlock]:
        """All of them, in order."""
        return list(self._blocks)


@dataclass
class FakeRequest:
    """As vLLM's Request."""

    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int = 0
    block_hashes: list[Any] = field(default_factory=list)
    session_id: str | None = None
    lora_request: Any = None
    cache_salt: str | None = None
    extra_args: dict[str, Any] | None = None
    arrival_time: float = 0.0
    finished: bool = True
    num_computed_tokens: int = 1 << 30

    @property
    def num_tokens(self) -> int:
        """Prompt and output."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def sampling_params(self) -> SimpleNamespace:
        """What `vllm_xargs` become."""
        return SimpleNamespace(extra_args=self.extra_args)

    def is_finished(self) -> bool:
        """Whether it is done, not preempted."""
        return self.finished


def asked_in(of: Traffic) -> Iterator[tuple[FakeRequest, float]]:
    """Return a trace's requests as an engine gets them, and when; hashes are the blocks."""
    _, blocks = paths(of.block_parent, of.leaf, of.length)
    ends = np.cumsum(of.length)
    for number, arrival_s in enumerate(of.arrival_s.tolist()):
        path = blocks[ends[number] - of.length[number] : ends[number]].tolist()
        alone = [(number, place) for place in range(of.anonymous[number])]
        tokens = int(of.input_tokens[number])
        one = FakeRequest(str(number), tokens, int(of.history_tokens[number]) - tokens)
        one.block_hashes = [*path, *alone]
        yield one, arrival_s
