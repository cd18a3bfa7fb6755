"""The traces of a store: list, find, load, add, remove."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.core.errors import InputError, without_secrets
from kvscope.core.files import STANDARD_STREAM, parts_of
from kvscope.core.trace import (
    Directives,
    Measurements,
    PromptParts,
    Prompts,
    StatedDirectives,
    Tenants,
    Trace,
)
from kvscope.store.checks import require_sound
from kvscope.store.db import Store

if TYPE_CHECKING:  # a stored trace is looked up without loading NumPy
    from kvscope.core.arrays import Int32s, Int64s

_ALIKE = 0.75
"""From 0 to 1: how similar a name must be to be suggested."""
MOST_CATEGORIES = 2**15 - 1
"""The most categories of a trace: their numbers fit into 16 bits.

What policies learn of each takes memory, too.
"""


def all_traces(store: Store) -> list[Trace]:
    """Return every trace of the store, the one last worked on first."""
    return [_trace(row) for row in store.rows("ingest/traces")]


def find(store: Store, name: str | None) -> Trace:
    """Return the trace called `name`, or the one last worked on where it is None.

    Raises InputError where there is none, with the nearest name.
    """
    known = all_traces(store)
    if not known:
        raise InputError(
            "holds no traces", where=store.path, remedy="give a trace file, or run `kvscope ingest`"
        )
    if name is None:
        return known[0]
    for trace in known:
        if trace.name == name:
            return trace
    near = nearest(name, [trace.name for trace in known])
    raise InputError(
        f"no stored trace is called {name!r}",
        where=store.path,
        remedy=f"did you mean {near!r}?" if near else "see `kvscope traces`",
    )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` most similar to `name`, ignoring case; None if none is close."""
    folded = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=_ALIKE)
    return folded[near[0]] if near else None


def find_content(store: Store, content_hash: str) -> Trace | None:
    """Return the trace with this content hash, if the store has it."""
    rows = store.rows("ingest/trace_by_content", content_hash=content_hash)
    return _trace(rows[0]) if rows else None


def find_reading(store: Store, content: str, options: str) -> Trace | None:
    """Return a stored trace that was read from this content, None if there is none.

    Of several, it is one that was read with these options; if none was, the one last used, so that
    its options differ. `content` and `options` are the beginning and the end of a content hash.
    """
    rows = store.rows("ingest/readings", content=content, options=options)
    return _trace(rows[0]) if rows else None


def has_size(store: Store, source_bytes: int) -> bool:
    """Return True if a stored trace came from a file of this size."""
    return bool(store.row("ingest/traces_of_size", source_bytes=source_bytes)["traces"])


def free_name(store: Store, path: str) -> str:
    """Return an unused name for the trace at `path`: its stem, numbered if need be.

    A list of several paths is named after the first, with the number of the others.
    """
    first, *others = parts_of(without_secrets(path))
    stem = "stdin" if path == STANDARD_STREAM else Path(first).name
    for suffix in (".gz", ".zst", ".jsonl", ".json", ".csv", ".parquet"):
        stem = stem.removesuffix(suffix)
    if "*" in stem or "?" in stem:  # several files
        stem = stem.replace("*", "").replace("?", "").strip("-_.")
    stem = stem.strip() or "trace"  # a file may be called " .jsonl"
    stem += f"+{len(others)}" if others else ""
    taken = {trace.name for trace in all_traces(store)}
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name


def add(store: Store, **columns: Any) -> Trace:
    """Add a trace's row to the table `traces`, from its columns; return the trace.

    `columns` are `source_bytes` and all fields of `Trace` but `trace_id`; `notes` is a list. The
    caller holds a transaction and writes the other tables. Raises InputError if the name is taken.
    """
    if any(trace.name == columns["name"] for trace in all_traces(store)):
        raise InputError(
            f"a trace called {columns['name']!r} is already there",
            where=store.path,
            remedy="choose another --name, or remove it with `kvscope traces remove`",
        )
    for name, value in columns.items():
        if isinstance(value, str):  # without what is no Unicode: a file's name may hold any bytes
            columns[name] = value.encode(errors="replace").decode()
    return _trace(store.row("ingest/add_trace", **columns))


def bad_lines(store: Store, trace: Trace) -> list[tuple[str, str]]:
    """Return (path:line, reason) of each unusable line, of very many only the first."""
    rows = store.rows("ingest/bad_lines", trace_id=trace.trace_id)
    return [(row["place"], row["reason"]) for row in rows]


def load_prompts(store: Store, trace: Trace) -> Prompts:
    """Return the prompts of `trace`, in order of arrival."""
    columns = load_requests(store, trace)
    return Prompts(block_parent=load_block_parents(store, trace), **columns)


def load_requests(store: Store, trace: Trace, requests: Int64s | None = None) -> dict[str, Any]:
    """Return the fields of a trace's `Prompts` by name, all but `block_parent`.

    With `requests` (ascending numbers), arrays have only their rows. Numbers, such as those of
    blocks, requests, users and conversations, stay those of the whole trace. Raises
    DamagedStoreError, and InputError for more than 32,767 categories (`MOST_CATEGORIES`).
    """
    require_sound(store, trace)
    columns = _columns_of(store, "prompts", trace, requests)
    names = store.rows("ingest/category_names", trace_id=trace.trace_id)
    require_few_categories(trace, len(names))
    return {
        "block_size": trace.block_size,
        "categories": tuple(row["category"] for row in names),
        "measurements": _load_measurements(store, trace, requests),
        "directives": _load_directives(store, trace, requests),
        **columns,
    }


def require_few_categories(trace: Trace, count: int) -> None:
    """Raise InputError if the `count` of a trace's categories is above 32,767 (`MOST_CATEGORIES`).

    Arrays number categories in 16 bits.
    """
    if count > MOST_CATEGORIES:
        raise InputError(
            f"{count:,} categories of requests, by type and turn, and {MOST_CATEGORIES:,} can"
            " be told apart",
            where=trace.source,
            remedy="give requests types that many of them share, or leave `type` out",
        )


def _columns_of(store: Store, query: str, trace: Trace, requests: Int64s | None) -> dict[str, Any]:
    columns = store.columns(f"ingest/{query}", requests, trace_id=trace.trace_id)
    del columns["request"]
    return columns


def _load_directives(
    store: Store, trace: Trace, requests: Int64s | None
) -> StatedDirectives | None:
    """Return the directives of a trace's requests; None where no request states any."""
    key = {"trace_id": trace.trace_id}
    texts = store.rows("ingest/directive_texts", **key)
    if not texts:
        return None
    import msgspec

    distinct = (msgspec.json.decode(row["retention"], type=Directives) for row in texts)
    columns = _columns_of(store, "directives", trace, requests)
    return StatedDirectives(**columns, distinct=tuple(distinct))


def _load_measurements(store: Store, trace: Trace, requests: Int64s | None) -> Measurements | None:
    if not (trace.workers or trace.measured_requests):  # most traces: spare them the query
        return None
    workers = store.rows("ingest/workers", trace_id=trace.trace_id)
    return Measurements(
        workers=tuple(row["worker"] for row in workers),
        **_columns_of(store, "measurements", trace, requests),
    )


def load_repeated_tokens(store: Store, trace: Trace) -> Int32s | None:
    """Return for each request how many tokens of the previous turn's prompt it repeats.

    0 where the trace does not say; None if it says so of no request. Raises DamagedStoreError.
    """
    import numpy as np

    require_sound(store, trace)
    stated = store.columns("ingest/repeated_tokens", trace_id=trace.trace_id)
    if not len(stated["request"]):
        return None
    tokens = np.zeros(trace.requests, dtype=np.int32)
    tokens[stated["request"]] = stated["repeated_tokens"]
    return tokens


def load_parts(store: Store, trace: Trace) -> PromptParts | None:
    """Return the parts of all prompts, None where no request has any. Raises DamagedStoreError."""
    import numpy as np

    require_sound(store, trace)
    key = {"trace_id": trace.trace_id}
    stated = store.columns("ingest/last_parts", **key)
    if not len(stated["request"]):
        return None
    last = np.zeros(trace.requests, dtype=np.int32)
    last[stated["request"]] = stated["parts"]
    columns = store.columns("ingest/parts", **key)
    above, kind, end = (np.append(np.int32(0), columns[x]) for x in ("above", "kind", "tokens"))
    kinds = tuple(row["kind"] for row in store.rows("ingest/part_kinds", **key))
    return PromptParts(last, above, kind, end, kinds)


def load_tenants(store: Store, trace: Trace) -> Tenants | None:
    """Return the tenant of each request: its model, LoRA adapter and cache salt together.

    Requests of different tenants share no blocks. None if the trace has only one tenant. Raises
    InputError for a dataset's trace of several tenants.
    """
    import numpy as np

    if (trace.tenants or 1) < 2:
        return None
    own = load_own_hash_ids(store, trace)
    if len(own) < trace.distinct_blocks:
        raise InputError(
            "a dataset keeps no hash ids, which tell what its tenants could share",
            where=store.path,
            remedy="ingest some of its files as one trace with --name, and take that",
        )
    return Tenants(
        **store.columns("ingest/tenants", trace_id=trace.trace_id),
        hash_id=np.concatenate((np.zeros(1, dtype=np.int64), own)),
    )


def load_hash_ids(store: Store, trace: Trace) -> Int64s:
    """Return each block's hash id, from block 1 on; ids of first blocks differ between tenants."""
    import numpy as np

    runs = store.columns("ingest/hash_ids", trace_id=trace.trace_id)
    blocks = runs["blocks"].astype(np.int64)
    first = np.cumsum(blocks) - blocks
    ids: Int64s = np.repeat(runs["hash_id"] - first, blocks)
    ids += np.arange(len(ids))
    return ids


def load_own_hash_ids(store: Store, trace: Trace) -> Int64s:
    """Return each block's hash id as the trace has it, equal for all tenants; from block 1 on."""
    ids = load_hash_ids(store, trace)
    renamed = store.columns("ingest/own_hash_ids", trace_id=trace.trace_id)
    ids[renamed["block"] - 1] = renamed["hash_id"]
    return ids


def request_by_id(store: Store, trace: Trace, chat_id: int) -> int | None:
    """Return the number of the first request with the id stored as `chat_id`; None without one."""
    number = store.row("ingest/request_by_id", trace_id=trace.trace_id, chat_id=chat_id)["request"]
    return None if number is None else int(number)


def load_block_parents(store: Store, trace: Trace) -> Int32s:
    """Return the prefix trie of `trace`: each block's parent, entry 0 being the root's own 0.

    Except at branches, a block's parent is the previous number. Raises InputError where a dataset
    has more than INT32_MAX blocks.
    """
    import numpy as np

    blocks, above = load_branches(store, trace)
    parents = np.arange(trace.distinct_blocks, dtype=np.int32)
    parents[blocks - 1] = above
    return np.concatenate((np.zeros(1, dtype=np.int32), parents))


def load_branches(store: Store, trace: Trace) -> tuple[Int32s, Int32s]:
    """Return (blocks, parents) at the branches: all other blocks follow their parent by number.

    Raises InputError where a dataset has more than INT32_MAX blocks, DamagedStoreError.
    """
    require_sound(store, trace)
    branches = store.columns("ingest/branches", trace_id=trace.trace_id)
    if trace.distinct_blocks and not len(branches["block"]):
        raise in_shards(store.path)
    return branches["block"], branches["parent"]


def in_shards(where: str) -> InputError:
    """Return the error for a dataset in a command that needs all blocks of a trace in its store."""
    return InputError(
        "a dataset, and no trace that a store could take as a whole",
        where=where,
        remedy="ingest some of its files as one trace with --name, and take that",
    )


def mark_used(store: Store, trace: Trace) -> None:
    """Make `trace` the last used, which commands without a trace's name take."""
    store.run("ingest/mark_used", trace_id=trace.trace_id)


def stated(store: Store, trace: Trace) -> dict[str, Any]:
    """Return the deployment and SLO options stated by earlier commands on `trace`, by name."""
    rows = store.rows("ingest/stated", trace_id=trace.trace_id)
    return dict(json.loads(rows[0]["options"])) if rows else {}


def keep_stated(store: Store, trace: Trace, options: dict[str, Any]) -> None:
    """Store the deployment and SLO options of commands on `trace`; `stated` returns them."""
    text = json.dumps(options)
    store.run("ingest/set_stated", trace_id=trace.trace_id, options=text)


def remove(store: Store, trace: Trace) -> None:
    """Remove the trace and everything derived from it, in one transaction."""
    from kvscope.store.results import remove_results  # loads NumPy

    with store.transaction():
        remove_results(store, trace)
        blocks = ("block_groups", "own_hash_ids", "branches", "blocks")
        requests = ("request_attributes", "requests", "parts", "bad_lines")
        for table in ("reuses", *blocks, *requests, "stated", "traces"):
            store.run(f"ingest/remove_{table}", trace_id=trace.trace_id)


def _trace(row: dict[str, Any]) -> Trace:
    return Trace(**{**row, "notes": tuple(row["notes"])})
