"""One shard of a dataset: its trie, the paths of its requests, and the reuse in it.

A shard has whole paths, with copies of the trunk's blocks, so any code that walks a trie can walk
it. Only the blocks from depth `split` on count in it. The trunk's own shard has the paths up to
where they are cut, and all of their blocks count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.arrays import Bools, Int32s, Int64s, distinct
from kvscope.core.disk_columns import stretches
from kvscope.core.errors import InputError
from kvscope.core.jit import kernel
from kvscope.core.prefix import ancestor
from kvscope.core.trace import PromptLengths, PromptPaths
from kvscope.datasets.cuts import TRUNK, read_pieces, starts_of
from kvscope.datasets.files import (
    Arrays,
    DamagedDatasetError,
    digest_of,
    load_array,
    save_arrays,
    whole_folder,
)
from kvscope.datasets.numbering import owned_blocks
from kvscope.ingest.build import PathEnds
from kvscope.ingest.columns import INT32_MAX
from kvscope.ingest.lineage import ends_at
from kvscope.ingest.reuse import ReusedRuns, trace_reuse
from kvscope.ingest.trie import Trie
from kvscope.replay.path_facts import LENGTHS

SHARD = ("block_parent", "request", "leaf", "length", "split")
_ENDS = ("end_request", "end_first", "end_above")
_CUT = "cut_end"
_RUNS = ("request", "previous", "depth", "blocks")
NUMBER = "number"
_BLOCK_SIZE = "block_size"
_CELLS = 1 << 16  # of time, in which runs are counted
GROUPS = ("first_request", "last_request", "reuses", "blocks")


class ShardTask(Struct, frozen=True):
    """A shard to build (`build_shard`) or to reduce (`reduce_shard`), into `folder`.

    To build is to make its trie, from the paths in the folder `paths`. To reduce is to find the
    reuse in the built shard, which is then the folder `paths`, and to write what the dataset's
    store needs of it. `columns` is a folder with columns of all requests: to build, the request of
    each file row, and full blocks; to reduce, lengths, and in the folder `rows` the file rows.
    """

    shard: int
    folder: str
    columns: str
    paths: str
    rows: str = ""


def build_shard(task: ShardTask) -> None:
    """Write a shard's paths, the trie made from them, and, for `path_ends`, where full blocks end.

    Raises InputError where it may have more than INT32_MAX blocks.
    """
    number = load_array(Path(task.columns), "number")
    trie = Trie()
    columns: list[tuple[Int32s, ...]] = [(np.zeros(0, dtype=np.int32),) * 4]
    for row, length, split, ids in read_pieces(Path(task.paths), task.shard):
        if trie.count + len(ids) > INT32_MAX:
            raise InputError(
                f"shard {task.shard} may have more than {INT32_MAX:,} distinct blocks",
                where=task.folder,
                remedy="take more --shards",
            )
        columns.append((number[row], trie.intern(starts_of(length), ids), length, split))
    request, leaf, length, split = (np.concatenate(each) for each in zip(*columns, strict=True))
    order = np.argsort(request)
    request, leaf, length, split = request[order], leaf[order], length[order], split[order]
    full_blocks = load_array(Path(task.columns), "full_blocks")[request]
    here = np.flatnonzero((full_blocks > split) & (full_blocks <= length))
    node = ends_at(trie.parent, leaf[here], length[here] - full_blocks[here])
    first, nearest = np.full((2, trie.count), -1, dtype=np.int32)
    _find_nearest_ends(trie.parent, node, request[here], first, nearest)
    arrays = dict(zip(SHARD, (trie.parent, request, leaf, length, split), strict=True))
    ends = (request[here], first[node], nearest[trie.parent[node]])
    arrays |= dict(zip(_ENDS, ends, strict=True))
    if task.shard == TRUNK:
        arrays[_CUT] = nearest[leaf]
    with whole_folder(Path(task.folder)) as folder:
        save_arrays(folder, arrays)


@kernel
def _find_nearest_ends(
    block_parent: Int32s, node: Int32s, request: Int32s, first: Int32s, nearest: Int32s
) -> None:
    """Fill, per block, the first request that ends there, and the request of the `nearest` end.

    K paths end: that of `request[k]` at block `node[k]`. `first` has the lowest request that ends
    at a block. `nearest` has the `first` of the closest block with one, up from the block itself.
    Both are -1 on entry, and stay so where there is none.
    """
    for k in range(len(node) - 1, -1, -1):
        first[node[k]] = request[k]
    for block in range(1, len(block_parent)):  # parents have lower numbers
        nearest[block] = first[block] if first[block] >= 0 else nearest[block_parent[block]]


def path_ends(folders: list[Path], full_blocks: Int32s) -> PathEnds:
    """Return the last full block of each request, in a tree that has only these blocks.

    A node's number is 1 + the first request that ends there. `folders` are those of the built
    shards, the trunk's first; `full_blocks` has the full blocks of all requests.
    """
    requests = len(full_blocks)
    full_leaf = np.zeros(requests, dtype=np.int32)
    above, blocks = np.zeros((2, requests + 1), dtype=np.int32)
    cut_end = np.full(requests, -1, dtype=np.int32)
    cut_end[load_array(folders[TRUNK], "request")] = load_array(folders[TRUNK], _CUT)
    for shard, folder in enumerate(folders):
        request, first, nearest = (load_array(folder, name) for name in _ENDS)
        full_leaf[request] = first + 1
        beyond = -1 if shard == TRUNK else cut_end[request]
        above[first + 1] = np.where(nearest >= 0, nearest, beyond) + 1
        blocks[first + 1] = full_blocks[first]
    return PathEnds(above, blocks, full_leaf)


def prompt_ends(folders: list[Path], requests: int) -> Int64s:
    """Return a number for the last block of each prompt: equal for equal prompts, 0 if empty."""
    last = np.zeros(requests, dtype=np.int64)
    for shard, folder in enumerate(folders):  # the trunk's first: what goes on below it replaces it
        leaf = load_array(folder, "leaf").astype(np.int64)
        last[load_array(folder, "request")] = (shard << 32) + leaf
    return last


class ShardPaths(Struct, frozen=True):
    """The requests with blocks in a shard, K of them: `request` are their numbers in the trace.

    In `paths`, `parent` is an index among these K, and block numbers are the shard's. Blocks before
    depth `first` in prompts, or `first_carried` in cached paths, count only in the trunk's shard.
    """

    paths: PromptPaths
    request: Int64s
    first: Int32s
    first_carried: Int32s


class Carriers(NamedTuple):
    """The request whose prompt contains the cached path of each of R requests, and the inverse.

    A cached path is the blocks of a request that stay cached after it: those of its prompt, and of
    its output as far as a later prompt contains them. `carrier` (R) is the later request, or where
    none contains output the request itself. The prompt of request k contains the cached paths of
    the requests carried[begin[k]:begin[k + 1]], in ascending order.
    """

    carrier: Int32s
    carried: Int32s
    begin: Int32s

    @classmethod
    def of(cls, carrier: Int32s) -> Carriers:
        """Return the carriers with their inverse."""
        begin = np.zeros(len(carrier) + 1, dtype=np.int32)
        np.cumsum(np.bincount(carrier, minlength=len(carrier)), out=begin[1:])
        return cls(carrier, np.argsort(carrier, kind="stable").astype(np.int32), begin)

    def carried_by(self, requests: Int32s) -> Int32s:
        """Return all requests whose cached paths these requests' prompts contain."""
        first = self.begin[requests].astype(np.int64)
        count = self.begin[requests + 1] - first
        skipped = np.repeat(first - np.cumsum(count) + count, count)
        return self.carried[skipped + np.arange(len(skipped))]


COLUMNS = (*LENGTHS, *Carriers._fields)
"""Names of the arrays with a number for each request (`begin` has one more), a file each."""


def places_among(numbers: Int32s | Int64s, among: Int32s | Int64s, missing: int) -> Int64s:
    """Return the index of each number in the ascending `among`, `missing` where it is absent."""
    if not len(among):
        return np.full(len(numbers), missing, dtype=np.int64)
    place = np.minimum(np.searchsorted(among, numbers), len(among) - 1)
    return np.where(among[place] == numbers, place, missing)


def load_shard(folder: Path, columns: Path, digest: str = "") -> ShardPaths:
    """Return a shard's paths; time and memory grow with the requests in it alone.

    `columns` is the folder with the columns of all requests. If `DatasetPaths.in_order` made it, it
    has an array "number", too: the new number of each request. Raises DamagedDatasetError if the
    files do not match the `digest` (if any), and for values that are invalid as indices.
    """
    block_parent, member, leaf, length, split = (load_array(folder, name) for name in SHARD)
    carriers = Carriers(*(load_array(columns, name) for name in Carriers._fields))
    check_shard(folder, len(carriers.carrier), digest)
    if (columns / f"{NUMBER}.npy").is_file():
        number = load_array(columns, NUMBER)
        order = np.argsort(number[member])
        member = number[member][order]
        leaf, length, split = leaf[order], length[order], split[order]
    request = distinct(member, carriers.carried_by(member)).astype(np.int64)
    # Of a request that only its own prompt, or only the carried path, leads here: nothing else.
    own = places_among(request, member, len(member))
    carried = places_among(carriers.carrier[request], member, len(member))
    leaf, length, split = (np.append(each, np.int32(0)) for each in (leaf, length, split))
    blocks = length[own]
    lengths = some_lengths(columns, request)
    carried_blocks = np.minimum(lengths.carried_blocks, length[carried])
    paths = PromptPaths(
        block_size=lengths.block_size,
        input_tokens=lengths.input_tokens,
        parent=places_among(lengths.parent, request, -1).astype(np.int32),
        blocks=blocks,
        full_blocks=np.minimum(lengths.full_blocks, blocks),
        cached_blocks=lengths.cached_blocks,
        carried_blocks=carried_blocks,
        leaf=leaf[own],
        carried_leaf=ends_at(
            np.asarray(block_parent), leaf[carried], length[carried] - carried_blocks
        ),
        block_parent=np.asarray(block_parent),
    )
    return ShardPaths(paths, request, split[own], split[carried])


def check_shard(folder: Path, requests: int, digest: str = "") -> None:
    """Raise DamagedDatasetError if files do not match the `digest`, or for invalid values."""
    if digest and digest_of(folder, SHARD) != digest:
        raise DamagedDatasetError(folder, "holds other files than the manifest says")
    arrays = [load_array(folder, name) for name in SHARD]
    paths = {len(array) for array in arrays[1:]}
    kinds = {(array.dtype, array.ndim) for array in arrays}
    if kinds != {(np.dtype(np.int32), 1)} or len(paths) > 1 or not len(arrays[0]):
        raise DamagedDatasetError(folder, "holds arrays of other kinds or lengths")
    depth = np.zeros(len(arrays[0]), dtype=np.int32)
    if not _are_paths(requests, depth, *arrays):
        raise DamagedDatasetError(folder, "holds values that cannot be")


@kernel
def _are_paths(
    requests: int,
    depth: Int32s,
    block_parent: Int32s,
    request: Int32s,
    leaf: Int32s,
    length: Int32s,
    split: Int32s,
) -> bool:
    """Return whether parents come first, and paths of ascending requests are as long as stated.

    Fills the `depth` of each block, the root's 0.
    """
    if block_parent[0] != 0:
        return False
    for block in range(1, len(block_parent)):
        if not 0 <= block_parent[block] < block:
            return False
        depth[block] = depth[block_parent[block]] + 1
    before = -1
    for k in range(len(request)):
        if not before < request[k] < requests or not 0 <= leaf[k] < len(depth):
            return False
        if depth[leaf[k]] != length[k] or not 0 <= split[k] <= length[k]:
            return False
        before = request[k]
    return True


def columns_digest(folder: Path) -> str:
    """Return the digest of the columns of all requests."""
    return digest_of(folder, (*COLUMNS, _BLOCK_SIZE))


def check_columns(folder: Path, digest: str) -> None:
    """Raise DamagedDatasetError if columns of requests do not match the `digest` or are invalid."""
    if columns_digest(folder) != digest:
        raise DamagedDatasetError(folder, "holds other files than the manifest says")
    columns = {name: load_array(folder, name) for name in COLUMNS}
    kinds = {(each.dtype, each.ndim) for each in columns.values()}
    lengths = {len(each) - (name == "begin") for name, each in columns.items()}
    if kinds != {(np.dtype(np.int32), 1)} or len(lengths) > 1:
        raise DamagedDatasetError(folder, "holds arrays of other kinds or lengths")
    size = load_array(folder, _BLOCK_SIZE)
    if size.shape != (1,) or size[0] < 1 or not _are_columns(columns):
        raise DamagedDatasetError(folder, "holds values that cannot be")


def _are_columns(of: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether lengths are consistent, and values that name requests are in range."""
    requests, begin = len(of["blocks"]), of["begin"]
    if begin[0] != 0 or begin[requests] != requests:
        return False
    for part in stretches(requests):
        own = {name: values[part] for name, values in of.items()}
        full, blocks = own["full_blocks"], own["blocks"]
        sound = (own["parent"] >= -1) & (own["parent"] < np.arange(part.start, part.stop))
        sound &= (own["begin"] <= begin[1:][part]) & (own["input_tokens"] >= 1)
        sound &= (full >= 0) & (full <= blocks) & (blocks <= own["input_tokens"])
        sound &= (own["carried_blocks"] >= 0) & (own["carried_blocks"] <= own["cached_blocks"])
        for name in ("carrier", "carried"):
            sound &= (own[name] >= 0) & (own[name] < requests)
        if not sound.all():
            return False
    return True


def clipped(runs: ReusedRuns, first: Int32s, request: Int64s) -> ReusedRuns:
    """Return the parts of runs from depth `first` of their request on, with requests renumbered.

    `first` and `request` have an entry for each request of a shard: the depth from which its blocks
    count there, and its number in the trace, which replaces that in the shard.
    """
    depth = np.maximum(runs.depth, first[runs.request])
    blocks = runs.depth + runs.blocks - depth
    kept = blocks > 0
    of, previous = (request[each[kept]].astype(np.int32) for each in (runs.request, runs.previous))
    return ReusedRuns(of, previous, depth[kept], blocks[kept])


def merge_runs(parts: list[ReusedRuns]) -> ReusedRuns:
    """Return the runs of reuse of all shards, in order of request and depth.

    A run is consecutive blocks of a path that the same earlier request touched last. Where a path
    leaves the trunk, the shards have a run in two pieces: they are joined again.
    """
    request, previous, depth, blocks = (
        np.concatenate([np.zeros(0, dtype=np.int32), *(getattr(part, name) for part in parts)])
        for name in _RUNS
    )
    order = np.lexsort((depth, request))
    request, previous, depth, blocks = (each[order] for each in (request, previous, depth, blocks))
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (
        (request[1:] != request[:-1])
        | (previous[1:] != previous[:-1])
        | (depth[1:] != depth[:-1] + blocks[:-1])
    )
    first = np.flatnonzero(begins)
    total = np.add.reduceat(blocks, first) if len(first) else blocks
    return ReusedRuns(request[first], previous[first], depth[first], total.astype(np.int32))


def reduce_shard(task: ShardTask) -> None:
    """Find the reuse in a shard, and write its arrays to the task's folder, with a file "digest".

    - "run_...": the runs of reuse, see `runs_by_name`.
    - "group_...": columns (`GROUPS`) of groups of the shard's own cacheable blocks. A group has the
      number of blocks with the same first request, last request and number of reuses.
    - "new", "above", "last": see `owned_blocks`.
    - "carried_...": of each request whose cached path ends here, its end's owner and its length.
    - "ideal_...": of each request, the leading blocks that hit in an infinite cache.
    - "own_blocks": the number of blocks that are not copies of the trunk's.
    """
    folder, columns = Path(task.folder), Path(task.columns)
    shard = load_shard(Path(task.paths), columns)
    paths = shard.paths
    reuse = trace_reuse(
        paths.block_parent, paths.block_size, paths.input_tokens, paths.full_blocks,
        paths.carried_leaf, paths.carried_blocks,
    )  # fmt: skip
    runs = clipped(reuse.runs, shard.first_carried, shard.request)
    counts = own_blocks(Path(task.paths))
    block_parent, member, leaf = (load_array(Path(task.paths), name) for name in SHARD[:3])
    row = load_array(Path(task.rows), "row")
    owner, numbered = owned_blocks(np.asarray(block_parent), counts, member, leaf, row[member])
    carried = np.flatnonzero(paths.carried_blocks > shard.first_carried)
    cacheable = np.flatnonzero(counts & (reuse.first >= 0))
    keys = np.stack([
        shard.request[reuse.first[cacheable]],
        shard.request[reuse.last[cacheable]],
        reuse.reuses[cacheable].astype(np.int64),
    ])  # fmt: skip
    groups, number = np.unique(keys, axis=1, return_counts=True)
    grouped = (*groups.astype(np.int32), number)
    arrays = runs_by_name(runs) | {
        f"group_{name}": each for name, each in zip(GROUPS, grouped, strict=True)
    }
    arrays |= numbered | {
        "carried_request": shard.request[carried].astype(np.int32),
        "carried_owner": owner[paths.carried_leaf[carried]],
        "carried_depth": paths.carried_blocks[carried],
        "ideal_request": shard.request.astype(np.int32),
        "ideal_blocks": reuse.ideal_blocks,
        "own_blocks": np.array([np.count_nonzero(counts)]),
    }
    with whole_folder(folder) as draft:
        save_arrays(draft, arrays)
        digest = digest_of(Path(task.paths), SHARD)
        (draft / "digest").write_text(digest, encoding="ascii")


def own_blocks(folder: Path) -> Bools:
    """Return which blocks of a shard are not copies of the trunk's (N + 1 entries).

    The first entry, the root's, is False.
    """
    block_parent, _, leaf, length, split = (load_array(folder, name) for name in SHARD)
    own = np.ones(len(block_parent), dtype=np.bool_)
    own[0] = False
    _mark_trunk(np.asarray(block_parent), leaf, length, split, own)
    return own


@kernel
def _mark_trunk(
    block_parent: Int32s, leaf: Int32s, length: Int32s, split: Int32s, own: Bools
) -> None:
    for k in range(len(leaf)):
        block = ancestor(block_parent, leaf[k], length[k] - split[k])
        while own[block]:
            own[block] = False
            block = block_parent[block]


def save_lengths(folder: Path, lengths: PromptLengths, carrier: Int32s) -> None:
    """Write the lengths and carriers of all requests, which every shard reads."""
    save_arrays(folder, {name: getattr(lengths, name) for name in LENGTHS})
    save_arrays(folder, Carriers.of(carrier)._asdict())
    save_arrays(folder, {_BLOCK_SIZE: np.array([lengths.block_size])})


def some_lengths(folder: Path, which: slice | Int32s | Int64s) -> PromptLengths:
    """Return the lengths of some requests, copied so that no file stays mapped."""
    columns = {name: np.array(load_array(folder, name)[which]) for name in LENGTHS}
    return PromptLengths(block_size=int(load_array(folder, _BLOCK_SIZE)[0]), **columns)


def runs_by_name(runs: ReusedRuns, name: str = "run") -> Arrays:
    """Return the fields of `runs` as arrays for `load_runs`, by names that begin with `name`."""
    return {f"{name}_{each}": getattr(runs, each) for each in _RUNS}


def load_runs(folder: Path, begin: int, end: int, name: str = "run") -> ReusedRuns:
    """Return a shard's runs of reuse, of the requests from `begin` to before `end`."""
    request = load_array(folder, f"{name}_request")
    part = slice(*np.searchsorted(request, [begin, end]).tolist())
    return ReusedRuns(*(np.array(load_array(folder, f"{name}_{each}")[part]) for each in _RUNS))


def run_stretches(
    folders: list[Path], requests: int, at_once: int, name: str = "run"
) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of stretches of requests, each with about `at_once` requests plus runs.

    A stretch is the requests from number `begin` to before `end`. The runs are those called `name`
    in all `folders`, see `runs_by_name`; `requests` is the number of all requests.
    """
    cell = -(-requests // _CELLS)
    runs = np.full(-(-requests // cell) + 1, cell, dtype=np.int64)
    runs[0] = 0
    for folder in folders:
        request = load_array(folder, f"{name}_request")
        runs[1:] += np.bincount(request // cell, minlength=len(runs) - 1)
    before, begin = np.cumsum(runs), 0
    while begin < len(before) - 1:
        end = int(np.searchsorted(before, before[begin] + at_once, side="right")) - 1
        end = max(end, begin + 1)
        yield begin * cell, min(end * cell, requests)
        begin = end
