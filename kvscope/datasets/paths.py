"""Reuse, hit curves and misses of a dataset, added up over its shards: equal to one trie's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from socket import gethostname
from tempfile import mkdtemp
from typing import Any, BinaryIO, Literal, Protocol
from weakref import finalize

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.characterize.spatial import DECILES, decile_histogram
from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s
from kvscope.core.disk_columns import append_array
from kvscope.core.errors import UsageError
from kvscope.core.executor import Executor, LocalProcesses
from kvscope.core.hits import HitDefinition
from kvscope.core.trace import PromptLengths
from kvscope.datasets.cuts import take_file
from kvscope.datasets.files import load_array, save_arrays
from kvscope.datasets.shards import (
    NUMBER,
    clipped,
    load_runs,
    load_shard,
    merge_runs,
    run_stretches,
    runs_by_name,
    save_lengths,
    some_lengths,
)
from kvscope.ingest.reuse import touches
from kvscope.replay.curve import HitCurve, bends, bent, looked_up, weighted
from kvscope.replay.misses import (
    MissReasons,
    Novelty,
    at_capacity,
    diverged,
    ideal_blocks,
    reasons,
)
from kvscope.replay.path_facts import by_token, lengths_in_order, walked
from kvscope.replay.stack_distances import LruDistances, LruStack
from kvscope.replay.traffic import walk, walk_lengths

RANGE = 1 << 23
"""Capacities in a range, each of which takes 8 bytes of memory while its corners are added up."""
_AT_ONCE = 1 << 21


class CurveCorners:
    """Corners of a hit curve, kept in files: `add` them in any order, then call `curve`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = dict[int, BinaryIO]()
        self._last = 0

    def add(self, at: Int64s, weight: Int64s) -> None:
        """Change the curve's slope by weight[k] from capacity at[k] (blocks) on, for each k."""
        self._last = max(self._last, int(at.max(initial=0)))
        ranges = at // RANGE
        order = np.argsort(ranges.astype(np.uint16), kind="stable")  # 2^39 blocks: a radix sort
        pairs = np.stack([at[order] % RANGE, weight[order]], axis=1).astype(np.int32)
        numbers, begin = np.unique(ranges[order], return_index=True)
        for number, some in zip(numbers.tolist(), np.split(pairs, begin)[1:], strict=True):
            if number not in self._files:
                self._files[number] = (self._folder / f"corners-{number}").open("w+b")
            append_array(self._files[number], some)

    def curve(self) -> tuple[Int64s, Int64s]:
        """Return the capacities (blocks) where the slope changes, and hits there: mapped files."""
        columns = [(self._folder / name).open("w+b") for name in ("knots", "hits")]
        for each in bent(self._steepening()):
            for column, values in zip(columns, each, strict=True):
                append_array(column, values)
        knots, hits = (take_file(column, np.dtype(np.int64)) for column in columns)
        return knots, hits

    def _steepening(self) -> Iterator[Float64s]:
        for number in range(self._last // RANGE + 1):
            steeper = np.zeros(min(RANGE, self._last + 1 - number * RANGE))
            if file := self._files.pop(number, None):
                pairs = take_file(file, np.dtype(np.int32)).reshape(-1, 2)
                for begin in range(0, len(pairs), _AT_ONCE):
                    at, weight = pairs[begin : begin + _AT_ONCE].T
                    steeper += np.bincount(at, weight, len(steeper))
            yield steeper


RUNS_AT_ONCE = 2_000_000
_DISTANCES = ("request", "depth", "blocks", "distance")


class Progress(Protocol):
    """Display of the progress of each step."""

    def steps(
        self,
        label: str,
        total: int | None = None,
        *,
        unit: Literal["bytes", "steps"] = "steps",
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Return a context for the step called `label`; call its value with each amount done."""


class DatasetPaths(Struct, frozen=True):
    """The paths of R requests, in shards of which each worker has one at a time in memory.

    `columns` is the folder with the columns of all requests. `folders` are those of the shards, the
    trunk's first; their `digests` are checked if given. About `runs_at_once` requests plus runs are
    in memory at a time; results too large for it are written to `work`. `kept` is the temporary
    folder of `columns` if `in_order` wrote them, removed once nothing refers to it; else None.
    """

    columns: Path
    folders: tuple[Path, ...]
    work: Path
    runs_at_once: int = RUNS_AT_ONCE
    executor: Executor | None = None
    progress: Progress | None = None
    kept: WorkFolder | None = None  # the folder of columns that go with this object
    digests: tuple[str, ...] = ()

    @property
    def block_size(self) -> int:
        """The tokens of a block."""
        return int(load_array(self.columns, "block_size")[0])

    @property
    def requests(self) -> int:
        """The number of requests, R."""
        return len(load_array(self.columns, "blocks"))

    def in_order(self, order: Int64s) -> DatasetPaths:
        """Return these paths with the requests in another order of arrival, renumbered."""
        number = np.empty(len(order), dtype=np.int32)
        number[order] = np.arange(len(order), dtype=np.int32)
        columns = lengths_in_order(some_lengths(self.columns, slice(None)), order)
        lengths = PromptLengths(block_size=self.block_size, **columns)
        carrier = number[load_array(self.columns, "carrier")[order]]
        kept = WorkFolder(self.work)
        folder = kept.path
        save_lengths(folder, lengths, carrier)
        save_arrays(folder, {NUMBER: number})
        return replace(self, columns=folder, kept=kept)

    def follow(
        self, curves: Collection[HitDefinition], ideals: Collection[HitDefinition] = ()
    ) -> FollowedShards:
        """Return the reuse in all shards: for `curves` and misses, and for `ideals` (ideal rates).

        Raises UsageError for a curve of a flat cache, where a block hits without its prefix.
        """
        if any(definition.flat for definition in curves):
            raise UsageError(
                "a flat cache's blocks are in no subtrees, and a dataset's are",
                where="--compat libcachesim",
                remedy="take another definition, or ingest the files as one trace",
            )
        walks = tuple(dict.fromkeys(map(walked, curves)))
        looks = tuple(dict.fromkeys(replace(walked(each), flat=False) for each in ideals))
        work = WorkFolder(self.work)
        tasks = [
            FollowTask(str(shard), str(self.columns), f"{work.path}/{k:04}", walks, looks, digest)
            for k, (shard, digest) in enumerate(self._shards())
        ]
        with self._steps("following paths", len(tasks)) as advance:
            for _ in (self.executor or LocalProcesses(1)).results(follow_shard, tasks):
                advance(1)
        return FollowedShards(self, work, [Path(task.into) for task in tasks], walks, looks)

    def _shards(self) -> Iterator[tuple[Path, str]]:
        return zip(self.folders, self.digests or [""] * len(self.folders), strict=True)

    def _steps(self, label: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        return self.progress.steps(label, total) if self.progress else nullcontext(lambda _: None)

    def deciles(self, multi_turn: Bools) -> Int64s:
        """Return counts of lookups of blocks (2 × 1024), as `decile_histogram` does for one trie.

        Rows: the request is a first turn (0) or, by `multi_turn` (R), a later one (1). Columns: the
        tenths of earlier prompts in which the block was, as a mask: bit k is set if an earlier
        request had the block in the tenth k of its prompt.
        """
        counts = np.zeros((2, 1 << DECILES), dtype=np.int64)
        for folder, digest in self._shards():
            shard = load_shard(folder, self.columns, digest)
            request, paths = shard.request, shard.paths
            counts += decile_histogram(
                paths.block_parent,
                paths.leaf,
                paths.blocks,
                np.ascontiguousarray(load_array(self.columns, "full_blocks")[request]),
                (paths.input_tokens - 1) // paths.block_size,
                multi_turn[request],
                shard.first,
            )
        return counts


class WorkFolder:
    """A folder of temporary files, removed when nothing refers to this object any more.

    Creating one removes those that killed processes of this machine left in the same place.
    """

    def __init__(self, where: Path) -> None:
        machine = f".analysis-{gethostname()}-"
        for other in where.glob(f"{machine}*"):
            if not _is_running(other.name.removeprefix(machine).partition("-")[0]):
                shutil.rmtree(other, ignore_errors=True)
        self.path = Path(mkdtemp(prefix=f"{machine}{os.getpid()}-", dir=where))
        finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _is_running(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


class FollowTask(Struct, frozen=True):
    """A shard to find reuse in: `walks` are for curves and misses, `looks` for ideal hit rates.

    `shard` is its folder and `digest` that of its files (empty: not checked), `columns` the folder
    with the columns of all requests, `into` the folder to write.
    """

    shard: str
    columns: str
    into: str
    walks: tuple[HitDefinition, ...]
    looks: tuple[HitDefinition, ...]
    digest: str = ""


def follow_shard(task: FollowTask) -> None:
    """Write a shard's runs of reuse and, per prompt, its leading blocks that earlier requests had.

    Arrays: `member`, the requests' numbers; per walk k the runs `run{k}_...` and, in blocks from
    the head of each prompt, `seen{k}` (looked up, and written before) and `start{k}` (where new
    blocks begin that replace the previous turn's, else `seen{k}`); per look `ideal{k}`, as `seen`.
    """
    shard = load_shard(Path(task.shard), Path(task.columns), task.digest)
    paths = shard.paths
    folder = Path(task.into)
    folder.mkdir()
    save_arrays(folder, {"member": shard.request.astype(np.int32)})
    for k, definition in enumerate(task.walks):
        steps = walk(paths, definition)
        carried = definition.outputs == "carried"
        first = shard.first_carried if carried else shard.first
        runs = clipped(touches(steps.block_parent, steps.leaf, steps.length), first, shard.request)
        save_arrays(folder, runs_by_name(runs, f"run{k}"))
        seen = ideal_blocks(paths, definition)
        # Two paths have in common what any shard with both of them finds.
        start, _ = diverged(steps, paths.parent, seen)
        save_arrays(folder, {f"seen{k}": seen, f"start{k}": start})
    for k, definition in enumerate(task.looks):
        save_arrays(folder, {f"ideal{k}": ideal_blocks(paths, definition)})


class FollowedShards:
    """Hit curves, ideal rates and misses of a dataset, from the runs of reuse in all its shards.

    The number of blocks that each request touched last adds up over shards, so LRU's exact curve
    needs only the merged runs. The files go when nothing refers to this object any more.
    """

    def __init__(
        self,
        paths: DatasetPaths,
        work: WorkFolder,
        shards: list[Path],
        walks: Sequence[HitDefinition],
        looks: Sequence[HitDefinition],
    ) -> None:
        self._paths, self._work, self._shards = paths, work, shards
        self._folder = work.path
        self._walks, self._looks = walks, looks
        self._measured = dict[int, list[Path]]()
        self._curves = dict[HitDefinition, HitCurve]()

    def curve(self, definition: HitDefinition) -> HitCurve:
        """Return LRU's hits at every capacity; the curve's arrays stay on disk."""
        if definition not in self._curves:
            first, total = self._first_counted(definition), 0
            corners = CurveCorners(self._folder)
            for begin, lengths, runs in self.distances(definition):
                corners.add(*bends(lengths, definition, runs, first - begin))
                total += int(looked_up(lengths, definition)[max(first - begin, 0) :].sum())
            self._curves[definition] = HitCurve(definition, *corners.curve(), total)
        return self._curves[definition]

    def ideal_rate(self, definition: HitDefinition) -> float:
        """Return the hit rate (0-1) of an infinite cache."""
        key = self._looks.index(replace(walked(definition), flat=False))
        first, hits, total = self._first_counted(definition), 0, 0
        at_once = self._paths.runs_at_once
        for begin in range(0, self._paths.requests, at_once):
            part = slice(begin, begin + at_once)
            lengths = some_lengths(self._paths.columns, part)
            counted = slice(max(first - begin, 0), None)
            ideal = self.most(f"ideal{key}", part)
            hits += int(weighted(lengths, definition, ideal)[counted].sum())
            total += int(looked_up(lengths, definition)[counted].sum())
        return hits / total if total else 0.0

    def misses(
        self, definition: HitDefinition, capacities_blocks: list[int]
    ) -> tuple[MissReasons, ...]:
        """Return the miss reasons at each capacity under LRU, over the whole trace."""
        curve = self.curve(by_token(definition))
        enough = int(curve.knots[-1:][0])
        parts = []
        for begin, lengths, _ in self.distances(definition):
            new = self.novelty(definition, begin, lengths)
            parts.append(reasons(lengths, new, new.seen, enough))
        known = _total(parts)
        return tuple(at_capacity(known, curve, each) for each in capacities_blocks)

    def distances(
        self, definition: HitDefinition
    ) -> Iterator[tuple[int, PromptLengths, LruDistances]]:
        """Yield (first request, prompt lengths, LRU stack distances) of consecutive requests.

        Each item is of about `DatasetPaths.runs_at_once` requests plus runs of reuse. The first
        request, and `parent` in the lengths, are numbers in the trace; the distances number the
        item's requests from 0.
        """
        key = self._walks.index(walked(definition))
        if key not in self._measured:
            self._measured[key] = list(self._measure(key))
        for file in self._measured[key]:
            with np.load(file) as arrays:
                begin, end, live = arrays["stretch"].tolist()
                runs = LruDistances(live=live, **{name: arrays[name] for name in _DISTANCES})
            yield begin, some_lengths(self._paths.columns, slice(begin, end)), runs

    def _measure(self, key: int) -> Iterator[Path]:
        requests, name = self._paths.requests, f"run{key}"
        stack = LruStack(requests)
        at_once = self._paths.runs_at_once
        for begin, end in run_stretches(self._shards, requests, at_once, name):
            runs = merge_runs([load_runs(shard, begin, end, name) for shard in self._shards])
            lengths = some_lengths(self._paths.columns, slice(begin, end))
            length, look, anonymous = walk_lengths(lengths, self._walks[key])
            measured = stack.distances(begin, runs, length + anonymous, look)
            columns: dict[str, Any] = {each: getattr(measured, each) for each in _DISTANCES}
            columns["request"] = measured.request - np.int32(begin)
            file = self._folder / f"distances{key}-{begin}.npz"
            np.savez(file, stretch=np.array([begin, end, stack.live]), **columns)
            yield file

    def novelty(self, definition: HitDefinition, begin: int, lengths: PromptLengths) -> Novelty:
        """Return which blocks no earlier request had, of prompts from `begin` on with `lengths`."""
        key = self._walks.index(walked(definition))
        part = slice(begin, begin + len(lengths.blocks))
        seen = self.most(f"seen{key}", part)
        look = walk_lengths(lengths, definition).look
        end, later = np.zeros_like(look), np.flatnonzero(lengths.parent >= 0)
        before = some_lengths(self._paths.columns, lengths.parent[later])
        end[later] = np.minimum(walk_lengths(before, definition).length, look[later])
        start = np.maximum(seen, self.most(f"start{key}", part))
        return Novelty(seen, look, start, np.maximum(seen, end))

    def most(self, name: str, part: slice) -> Int32s:
        """Return per request of `part` the largest value of array `name` in any shard, or 0.

        `name` is an array of leading blocks that `follow_shard` wrote, such as "seen0" of walk 0. A
        shard counts blocks from the head of a path, of which it may have only a part; so the
        largest number in any shard is that of the whole path.
        """
        most = np.zeros(min(part.stop, self._paths.requests) - part.start, dtype=np.int32)
        for shard in self._shards:
            member = load_array(shard, "member")
            own = slice(*np.searchsorted(member, [part.start, part.stop]).tolist())
            place = member[own] - part.start
            most[place] = np.maximum(most[place], load_array(shard, name)[own])
        return most

    def _first_counted(self, definition: HitDefinition) -> int:
        return int(self._paths.requests * definition.warmup)


def _total(parts: Sequence[MissReasons]) -> MissReasons:
    tokens = {
        name: sum(getattr(part, name) for part in parts)
        for name in MissReasons.__struct_fields__
        if name != "capacity_blocks"
    }
    return replace(parts[0], **tokens)
