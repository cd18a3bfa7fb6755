"""What keeping tenants apart costs: prefix caching when nobody hits what another tenant wrote.

vLLM's `cache_salt` enters the hash of a prompt's first block, and so all hashes after it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvscope.errors import InputError
from kvscope.facts import HitDefinition
from kvscope.ingest.trie import Trie
from kvscope.jit import kernel
from kvscope.prefix import write_path
from kvscope.simulate.ideal import ideal_rate
from kvscope.store.prompts import Prompts

Tenant = Literal["user", "conversation"]

_AT_A_TIME = 1 << 14  # requests whose paths are written out together: bounds the memory


@dataclass(frozen=True, slots=True)
class IsolationCost:
    """What an infinite cache hits (0-1), shared by all and with every tenant apart."""

    by: Tenant
    tenants: int
    shared_hit_rate: float
    isolated_hit_rate: float


def isolate(prompts: Prompts, by: Tenant) -> Prompts:
    """The same requests with every tenant's blocks apart, numbered anew.

    Requests without a user share one tenant, as vLLM has it for requests without a salt. Raises
    InputError where the trace names no users at all.
    """
    tenant = _tenants(prompts, by)
    trie = Trie()
    leaf = np.zeros_like(prompts.leaf)
    carried_leaf = np.zeros_like(prompts.carried_leaf)
    for start in range(0, len(leaf), _AT_A_TIME):
        part = slice(start, start + _AT_A_TIME)
        for new, old, length in (
            (leaf, prompts.leaf, prompts.blocks),
            (carried_leaf, prompts.carried_leaf, prompts.carried_blocks),
        ):
            starts = np.concatenate([[0], np.cumsum(length[part], dtype=np.int64)])
            ids = np.empty(starts[-1], dtype=np.int64)
            _write_salted(prompts.block_parent, old[part], starts, tenant[part], ids)
            new[part] = trie.intern(starts, ids)
    return replace(prompts, leaf=leaf, carried_leaf=carried_leaf, block_parent=trie.parent.copy())


def isolation_cost(prompts: Prompts, definition: HitDefinition, by: Tenant) -> IsolationCost:
    """The hit rate of an infinite cache before and after tenants are kept apart."""
    return IsolationCost(
        by=by,
        tenants=len(np.unique(_tenants(prompts, by))),
        shared_hit_rate=ideal_rate(prompts, definition),
        isolated_hit_rate=ideal_rate(isolate(prompts, by), definition),
    )


def _tenants(prompts: Prompts, by: Tenant) -> NDArray[np.int32]:
    if by == "conversation":
        return prompts.conversation
    if not (prompts.user >= 0).any():
        raise InputError(
            "the trace names no users",
            where="--isolate user",
            remedy="keep conversations apart with `--isolate conversation`",
        )
    return prompts.user


@kernel
def _write_salted(
    block_parent: NDArray[np.int32],
    leaf: NDArray[np.int32],
    starts: NDArray[np.int64],
    tenant: NDArray[np.int32],
    ids: NDArray[np.int64],
) -> None:
    """Fill `ids`: the path to each leaf, its first block renamed by its tenant."""
    for k in range(len(leaf)):
        write_path(block_parent, leaf[k], ids, starts[k], starts[k + 1])
        if starts[k] < starts[k + 1]:
            ids[starts[k]] += (np.int64(tenant[k]) + 1) * len(block_parent)
