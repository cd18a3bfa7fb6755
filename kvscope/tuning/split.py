"""A trace cut by time: warm-up, then training, validation and held-out window."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.characterize.distributions import Windows
from kvscope.core.errors import InputError
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Lineage, Prompts
from kvscope.core.units import format_percentile
from kvscope.ingest.lineage import carried_outputs, conversations, parents_by_prefix
from kvscope.replay.derived_traces import select
from kvscope.replay.workload import Workload
from kvscope.tuning.target import check_shares

FEWEST = 100
BEYOND = 5
"""The fewest requests of a window: in all (FEWEST), and beyond the target's percentile (BEYOND)."""
_BUCKETS = np.array(["1", "2", "3", "4-6", "7+"])
_FIRST_TURNS = (2, 3, 4, 7)  # of the buckets after the first one


class Split(Struct, frozen=True):
    """The number of requests, in order of arrival, in each window, and when the last two begin (s).

    Every replay starts at the trace's first request, so that the cache is warm. Parameters are
    searched on the training window; the validation window ranks the policies, each with its best
    setting on that window; the held-out window rejects harmful policies. No step sees a later one.
    """

    warmup_requests: int
    training_requests: int
    validation_requests: int
    held_out_requests: int
    validation_from_s: float
    held_out_from_s: float

    @property
    def requests(self) -> int:
        """The number of requests in all windows."""
        later = self.validation_requests + self.held_out_requests
        return self.warmup_requests + self.training_requests + later


def split_windows(
    prompts: Prompts, warmup: float, validation: float, held_out: float, percentile: float
) -> Split:
    """Return the windows: `warmup` first, `validation` and `held_out` last, as shares of requests.

    Raises UsageError for shares that leave a window but the warm-up empty, InputError if one of the
    three has fewer than 100 requests, or fewer than 5 slower than the target's `percentile` (0-1).
    """
    check_shares(warmup, validation, held_out)
    requests = len(prompts.leaf)
    first = int(requests * warmup)
    # 1 - 0.3 - 0.25 is a digit below 0.45
    last, middle = (
        int(requests * share + 1e-6) for share in (1 - held_out, 1 - held_out - validation)
    )
    split = Split(
        warmup_requests=first,
        training_requests=middle - first,
        validation_requests=last - middle,
        held_out_requests=requests - last,
        validation_from_s=float(prompts.arrival_s[middle]) if middle < requests else float("nan"),
        held_out_from_s=float(prompts.arrival_s[last]) if last < requests else float("nan"),
    )
    fewest = max(FEWEST, math.ceil(BEYOND / (1 - percentile) - 1e-9))
    windows = (split.training_requests, split.validation_requests, split.held_out_requests)
    if min(windows) < fewest:
        raise InputError(
            f"{requests:,} requests are too few for a training, a validation and a held-out window",
            remedy=f"take a longer trace: for {format_percentile(percentile)} each window needs"
            f" {fewest:,} requests",
        )
    return split


def window_workloads(
    prompts: Prompts, split: Split, setting: RunSetting, windows: Windows, lineage: Lineage
) -> tuple[Workload, Workload, Workload]:
    """Return the workloads that end with the training, the validation and the held-out window.

    All begin at the first request; each counts only its last window. Results over time are those
    of `windows` (of equal length).
    """
    training = split.warmup_requests + split.training_requests
    validation = training + split.validation_requests

    def until(end: int, first: int) -> Workload:
        some = prompts if end == split.requests else first_requests(prompts, end, lineage)
        return Workload(some, counted_from(setting, first, end), windows)

    return (
        until(training, split.warmup_requests),
        until(validation, training),
        until(split.requests, validation),
    )


def later_workload(held_out: Workload, split: Split) -> Workload:
    """Return the held-out workload with the requests of the validation window counted, too."""
    first, prompts = split.warmup_requests + split.training_requests, held_out.prompts
    setting = counted_from(held_out.setting, first, len(prompts.leaf))
    return Workload(prompts, replace(setting, isolate=None), held_out.windows)  # isolated already


def counted_from(setting: RunSetting, first: int, requests: int) -> RunSetting:
    """Return the setting of a replay of `requests` requests that counts from request `first` on."""
    # Half a request more, so that the share gives the very number back.
    share = min((first + 0.5) / requests, 1.0)
    return replace(setting, definition=replace(setting.definition, warmup=share))


def first_requests(prompts: Prompts, count: int, lineage: Lineage) -> Prompts:
    """Return the first `count` requests as if the trace had only those when it was ingested.

    `lineage` is the origin of the trace's conversations; if "inferred", they are inferred again.
    """
    leaf = np.where(
        prompts.blocks > prompts.full_blocks, prompts.block_parent[prompts.leaf], prompts.leaf
    )
    full = replace(prompts, carried_leaf=leaf, carried_blocks=prompts.full_blocks)
    cut = select(full, np.arange(count))
    full_leaf = cut.carried_leaf
    parent = cut.parent
    if lineage == "inferred":
        parent = parents_by_prefix(cut.block_parent, full_leaf, cut.input_tokens, cut.output_tokens)
    conversation, turn = conversations(parent)
    carried_leaf, carried_blocks = carried_outputs(
        cut.block_parent,
        cut.block_size,
        parent,
        full_leaf,
        cut.full_blocks,
        cut.input_tokens,
        cut.output_tokens,
    )
    category, categories = _categories(cut, turn)
    return replace(
        cut,
        parent=parent,
        conversation=conversation,
        carried_leaf=carried_leaf,
        carried_blocks=carried_blocks,
        category=category,
        categories=categories,
    )


def _categories(cut: Prompts, turn: NDArray[np.int32]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return each request's category, and the names of the categories (type and turn bucket).

    Buckets are of `turn`, the turns of the requests (R) in the cut trace, unless the trace names
    turns: then they stay.
    """
    named = [name.rpartition(" ") for name in cut.categories]
    kinds, kind = np.unique([parts[0] for parts in named], return_inverse=True)
    bucket = np.searchsorted(_BUCKETS, [parts[2] for parts in named])[cut.category]
    if np.array_equal(bucket, _bucket(conversations(cut.parent)[1])):  # else the trace names turns
        bucket = _bucket(turn)
    pairs, category = np.unique(kind[cut.category] * len(_BUCKETS) + bucket, return_inverse=True)
    names = (f"{kinds[pair // len(_BUCKETS)]} {_BUCKETS[pair % len(_BUCKETS)]}" for pair in pairs)
    return category.astype(np.int32), tuple(names)


def _bucket(turn: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the index in `_BUCKETS` of each turn."""
    return np.searchsorted(_FIRST_TURNS, turn, side="right")
