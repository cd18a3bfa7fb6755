"""Read one part of a dataset: some of its files, as columns of requests and paths by shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableMapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.errors import InputError, without_secrets
from kvscope.datasets.cuts import Cuts, Spill
from kvscope.datasets.files import load_array, save_arrays, whole_folder
from kvscope.ingest.columns import NAMED, NONE, TENANT, Gaps, PartTree, number_of
from kvscope.ingest.formats.base import Rejects
from kvscope.ingest.limits import MAX_REQUESTS
from kvscope.ingest.pipeline import IngestOptions, Span, format_of, read_columns
from kvscope.ingest.source import Source

_FACTS, _TREE = "part.json", "prompt_parts"


class PartTask(Struct, frozen=True):
    """Which files to read, or which stretch of one, how, and where to."""

    folder: str
    path: str
    options: IngestOptions
    cuts: str
    shards: int
    stretch: tuple[int, int] | None = None


class RejectedLine(Struct, frozen=True):
    """A line that cannot be used: its number in the part and in its own file."""

    line: int
    reason: str
    file: str
    number: int


class PartFacts(Struct, frozen=True):
    """What a part says besides its columns. `stands_alone`: nothing in it depends on earlier files.

    `content` digests the decompressed bytes. `lines_read` are of the file of the part before
    if it `continues` that.
    """

    content: str
    bytes_on_disk: int
    block_size: int
    gaps: Gaps
    names: dict[str, tuple[str, ...]]
    tenants: int
    own_tenant_ids: bool
    accepted: int
    rejected: int
    reasons: dict[str, int]
    lines: tuple[RejectedLine, ...]
    spans: dict[str, Span]
    notes: tuple[str, ...]
    left_out: dict[str, int]
    cut: str
    stands_alone: bool
    lines_read: int
    continues: bool


def parse_part(task: PartTask) -> None:
    """Read the files of a part into its folder."""
    with (
        whole_folder(Path(task.folder)) as folder,
        closing(Source(task.path, stretch=task.stretch)) as source,
        Spill(folder, Cuts.load(Path(task.cuts)), task.shards) as spill,
    ):
        chosen = format_of(source, task.options)
        columns, reader, rejects, spans = read_columns(source, chosen, task.options, spill)
        spill.close()
        arrays = columns.arrays()
        places = [(line, reason, *rejects.where_exactly(line)) for line, reason in rejects.lines]
        facts = PartFacts(
            content="" if rejects.is_hopeless else source.drain(),
            bytes_on_disk=source.bytes_on_disk,
            block_size=columns.block_size,
            gaps=columns.gaps,
            names={name: tuple(known) for name, known in columns.names.items()},
            tenants=len(columns.tenants),
            own_tenant_ids=bool(columns.own_ids),
            accepted=rejects.accepted,
            rejected=rejects.count,
            reasons=rejects.reasons,
            lines=tuple(
                RejectedLine(line, _text(reason), _text(file), number)
                for line, reason, file, number in places
            ),
            spans={_text(file): span for file, span in spans.items()}
            or {_text(task.path): _span(arrays)},
            notes=tuple(reader.notes),
            left_out=reader.left_out,
            cut=reader.cut,
            stands_alone=_stands_alone(arrays, columns.gaps)
            and not (reader.notes or reader.cut or source.is_cut or rejects.is_hopeless),
            lines_read=source.lines_read,
            continues=task.stretch is not None and task.stretch[0] > 0,
        )
        save_arrays(folder, {name: each for name, each in arrays.items() if name != "leaf"})
        (folder / _TREE).mkdir()
        save_arrays(folder / _TREE, columns.parts._asdict())
        (folder / _FACTS).write_bytes(msgspec.json.encode(facts))


def _text(text: str) -> str:
    """Return a text with its invalid Unicode replaced: a file's name may hold any bytes."""
    return text.encode(errors="replace").decode()


def _span(arrays: dict[str, NDArray[Any]]) -> Span:
    timed = arrays["arrival_s"][arrays["clock"] < 0]
    return (float(timed.min()), float(timed.max())) if len(timed) else (0.0, 0.0)


def _stands_alone(arrays: dict[str, NDArray[Any]], gaps: Gaps) -> bool:
    """Return whether the requests do not depend on files before this part."""
    sessions = (arrays["session"] >= 0).any() or (arrays["clock"] >= 0).any()
    return not (sessions or gaps.untimed)


def load_facts(folder: Path) -> PartFacts:
    """Return the facts of a part that is read."""
    return msgspec.json.decode((folder / _FACTS).read_bytes(), type=PartFacts)


class Joined(Struct, frozen=True):
    """All parts as one trace: `rows` are columns in file order, part k's from `offsets[k]` on."""

    block_size: int
    rows: MutableMapping[str, NDArray[Any]]
    offsets: tuple[int, ...]
    names: dict[str, tuple[str, ...]]
    tenants: int
    parts: PartTree
    gaps: Gaps
    spans: dict[str, Span]
    notes: tuple[str, ...]
    left_out: Counter[str]
    cut: str
    contents: tuple[str, ...]
    bytes_on_disk: int


def can_be_joined(parts: list[PartFacts]) -> bool:
    """Return whether parts that were read by themselves equal the files read one after another."""
    if len(parts) == 1:
        return True
    first = parts[0]
    return all(
        part.stands_alone
        and part.block_size == first.block_size
        and part.tenants <= 1
        and all(part.names[name] == first.names[name] for name in TENANT)
        for part in parts
    )


def join_rejects(path: str, parts: list[PartFacts]) -> Rejects:
    """Return the bad lines of all parts."""
    places: dict[int, tuple[str, int]] = {}
    rejects = Rejects(without_secrets(path), place=lambda line: places[line])
    offset = before = 0  # lines of all parts, and of the same file
    for part in parts:
        before = before if part.continues else 0
        for each in part.lines:
            places[offset + each.line] = each.file, before + each.number
            if len(rejects.lines) < rejects.limit:
                rejects.lines.append((offset + each.line, each.reason))
        offset += max([part.accepted + part.rejected, *(each.line for each in part.lines)])
        before += part.lines_read
        rejects.accepted += part.accepted
        rejects.count += part.rejected
        for kind, count in part.reasons.items():
            rejects.reasons[kind] = rejects.reasons.get(kind, 0) + count
    return rejects


def join_parts(
    path: str, folders: list[Path], parts: list[PartFacts], rows: MutableMapping[str, NDArray[Any]]
) -> Joined:
    """Join all parts; their columns are put into `rows` one by one.

    Raises InputError for more requests than kvscope takes.
    """
    known: dict[str, dict[str, int]] = {name: {} for name in NAMED}
    tree, before = _joined_trees(folders, [part.names["part"] for part in parts], known["part"])
    names = Gaps.__struct_fields__
    for name in sorted(file.stem for file in folders[0].glob("*.npy") if file.stem != "index"):
        columns = [load_array(folder, name) for folder in folders]
        if name in known:
            for k, part in enumerate(parts):
                numbers = [number_of(known, name, value) for value in part.names[name]]
                columns[k] = np.array([*numbers, NONE], dtype=np.int32)[columns[k]]
        if name == "parts":
            columns = [np.where(x < 0, x, x + n) for x, n in zip(columns, before, strict=True)]
        rows[name] = np.concatenate(columns)
    sizes = [part.gaps.requests for part in parts]
    if sum(sizes) > MAX_REQUESTS:
        raise InputError(
            f"more than {MAX_REQUESTS:,} requests", where=path, remedy="take part of the files"
        )
    return Joined(
        block_size=parts[0].block_size,
        rows=rows,
        offsets=tuple(np.cumsum([0, *sizes]).tolist()[:-1]),
        names={name: tuple(numbers) for name, numbers in known.items()},
        tenants=max(part.tenants for part in parts),
        parts=tree,
        gaps=Gaps(*(sum(getattr(part.gaps, name) for part in parts) for name in names)),
        spans=_joined_spans(parts),
        notes=parts[0].notes,
        left_out=sum((Counter(part.left_out) for part in parts), Counter[str]()),
        cut=parts[0].cut,
        contents=tuple(part.content for part in parts),
        bytes_on_disk=sum(part.bytes_on_disk for part in parts),
    )


def _joined_trees(
    folders: list[Path], kinds: list[tuple[str, ...]], known: dict[str, int]
) -> tuple[PartTree, list[int]]:
    """Return the trees of prompts' parts as one, and how many parts come before each one's own.

    Kinds are numbered as in `known`, which takes in those that are new.
    """
    columns = [[np.zeros(1, dtype=np.int32)] for _ in PartTree._fields]
    count, before = 0, []
    for folder, names in zip(folders, kinds, strict=True):
        above, kind, end = (load_array(folder / _TREE, x)[1:] for x in PartTree._fields)
        numbers = np.array([known.setdefault(x, len(known)) for x in names], dtype=np.int32)
        own = np.where(above > 0, above + count, 0).astype(np.int32), numbers[kind], end
        for column, values in zip(columns, own, strict=True):
            column.append(values)
        before.append(count)
        count += len(end)
    return PartTree(*map(np.concatenate, columns)), before


def _joined_spans(parts: list[PartFacts]) -> dict[str, Span]:
    """Return the first and last arrival of each file, of which several parts may have a stretch."""
    spans: dict[str, Span] = {}
    for part in parts:
        for file, (first_s, last_s) in part.spans.items():
            known = spans.get(file, (first_s, last_s))
            spans[file] = min(known[0], first_s), max(known[1], last_s)
    return spans
