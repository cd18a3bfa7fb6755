"""Contents of blocks (what their hashes stand for), and hits: prefixes that all groups have cached.

Source: vLLM 0.32.0, vllm/v1/core/kv_cache_coordinator.py (HybridKVCacheCoordinator) and
vllm/v1/core/single_type_kv_cache_manager.py (find_longest_cache_hit of each manager).
"""

from __future__ import annotations

from kvscope.core.jit import callable_in_kernels
from kvscope.vllm_sim.pool import holder_of
from kvscope.vllm_sim.state import NONE, Machine


@callable_in_kernels
def blocks_for(tokens: int, block_size: int) -> int:
    """Return the number of blocks that hold `tokens` tokens, a partial last block included."""
    return (tokens + block_size - 1) // block_size


@callable_in_kernels
def content_at(machine: Machine, row: int, group: int, at: int) -> int:
    """Return the content of a group's block `at` on the path in row `row` of `path`."""
    layout, size = machine.groups[group], machine.groups[group].blocks_per_node
    if size > 1:
        return machine.path[row, at // size] + at % size * layout.nodes + layout.first_content  # type: ignore[no-any-return]
    return machine.path[row, (at + 1) * layout.nodes_per_block - 1] + layout.first_content  # type: ignore[no-any-return]


@callable_in_kernels
def content_after(machine: Machine, row: int, group: int, tokens: int) -> int:
    """Return the content of a group's block that ends after `tokens` tokens of path `row`."""
    depth = tokens // machine.state[0].block_size - 1
    return machine.path[row, depth] + machine.groups[group].first_content  # type: ignore[no-any-return]


@callable_in_kernels
def was_held(machine: Machine, content: int) -> bool:
    """Return whether a block ever had `content`, or linear attention wrote a state of it."""
    written = len(machine.written) > 0 and machine.written[content] > 0
    return written or machine.holders[content] != 0  # type: ignore[no-any-return]


@callable_in_kernels
def look_up(machine: Machine, tokens: int) -> tuple[int, int]:
    """Return the hit of request `front` (STATE), at most `tokens`, and its junction, in tokens.

    The junction is the longest prefix that only some of the groups have cached, 0 if it is no
    longer than the hit. Prompts part there, so windows and states are worth keeping.
    """
    if machine.state[0].hybrid:
        hit, junction = machine.grouped.look_up(machine, tokens, False)
        return hit, junction
    size, at, front = machine.groups[0].block_tokens, 0, len(machine.path) - 1
    whole = tokens // size
    while at < whole and holder_of(machine, content_at(machine, front, 0, at)) != NONE:
        at += 1
    return max(0, at * size - machine.specs[0].dropped_tokens), 0


@callable_in_kernels
def count_written(machine: Machine, most: int) -> int:
    """Return how many leading trie nodes of request `front` (STATE) full attention ever held.

    At most `most`. For a model without full attention, its first group counts.
    """
    front, group = len(machine.path) - 1, machine.specs[0].begin
    nodes, parts = machine.groups[group].nodes_per_block, machine.groups[group].blocks_per_node
    end = nodes
    while end <= most and was_held(
        machine, content_at(machine, front, group, end // nodes * parts - 1)
    ):
        end += nodes
    return end - nodes  # type: ignore[no-any-return]
