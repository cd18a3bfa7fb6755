"""Datasets of small traces, made in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvscope.core.executor import Executor, LocalProcesses
from kvscope.core.units import GIB
from kvscope.datasets.ingest import DatasetBuild, DatasetOptions, ingest_dataset
from kvscope.ingest.formats.base import ReadOptions, Request
from kvscope.ingest.pipeline import Ingested, IngestOptions

NAME = "trace"


class Silent:
    """Shows no progress."""

    def steps(
        self, label: str, total: int | None = None, *, unit: str = "steps"
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Return a context whose callable counts nothing."""
        return nullcontext(lambda _: None)


def options(
    shards: int | None = None, *, cut_share: float = 0.1, read: IngestOptions | None = None
) -> DatasetOptions:
    """Return options by which many prefixes are cut."""
    return DatasetOptions(4 * GIB, shards, cut_share, read or IngestOptions(NAME))


def dataset(
    paths: Sequence[str | Path],
    folder: Path,
    chosen: DatasetOptions,
    executor: Executor | None = None,
) -> Ingested:
    """Make a dataset of these files."""
    where = executor or LocalProcesses(1)
    return ingest_dataset([*map(str, paths)], str(folder), chosen, where, Silent())


def build(path: str, folder: Path, chosen: DatasetOptions) -> DatasetBuild:
    """Return a build that is settled."""
    made = DatasetBuild(path, folder, chosen, LocalProcesses(1), Silent())
    assert not made.plan()
    return made


def write_files(
    requests: Sequence[Request], ends: Sequence[int], folder: Path, *, given: bool
) -> tuple[list[Path], IngestOptions]:
    """Write requests to several files that end before these numbers, and return how to read them.

    Conversations are given or have to be inferred.
    """
    paths = []
    folder.mkdir()
    for number, (begin, end) in enumerate(zip([0, *ends], [*ends, len(requests)], strict=True)):
        if begin == end:
            continue
        lines = [_line(each, given=given) for each in requests[begin:end]]
        paths.append(folder / f"{number:02}.jsonl")
        paths[-1].write_bytes(b"\n".join(lines))
    format_name = "bailian" if given else "mooncake"
    return paths, IngestOptions(NAME, format_name, read=ReadOptions(SIZE))


SIZE = 3
"""Tokens of a block in `write_files`."""


def _line(request: Request, *, given: bool) -> bytes:
    fields_of = {
        "timestamp": int(request.arrival_s or 0),
        "input_length": request.input_tokens,
        "output_length": request.output_tokens,
        "hash_ids": request.hash_ids,
    }
    if given:
        parent = -1 if request.parent_chat_id is None else request.parent_chat_id
        fields_of |= {"chat_id": request.chat_id, "parent_chat_id": parent, "type": "text"}
        fields_of["turn"] = 1
    return msgspec.json.encode(fields_of)


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Return where two results differ, number by number and bit by bit."""
    if isinstance(one, msgspec.Struct) or is_dataclass(one):
        if type(one) is not type(other):
            return [f"{place}: {one} {other}"]
        names = (
            one.__struct_fields__
            if isinstance(one, msgspec.Struct)
            else [each.name for each in fields(one)]
        )
        pairs = [(getattr(one, name), getattr(other, name), f"{place}.{name}") for name in names]
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        pairs = [(a, b, f"{place}[{k}]") for k, (a, b) in enumerate(zip(one, other, strict=True))]
    elif isinstance(one, np.ndarray):
        same = one.dtype == other.dtype and np.array_equal(one, other)
        return [] if same else [f"{place}: {one} {other}"]
    else:
        return [] if one == other else [f"{place}: {one} {other}"]
    return [each for pair in pairs for each in differences(*pair)]
