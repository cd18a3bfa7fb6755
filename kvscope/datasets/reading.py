"""Read the files of a dataset into a folder: columns of requests, and paths by shard."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.errors import without_secrets
from kvscope.datasets.cuts import Cuts, Spill
from kvscope.datasets.files import load_array, save_arrays, whole_folder
from kvscope.ingest.columns import Gaps, PartTree
from kvscope.ingest.formats.base import Rejects, TraceFormat
from kvscope.ingest.pipeline import IngestOptions, Span, read_columns
from kvscope.ingest.source import Source

_FACTS, _COLUMNS, _TREE = "facts.json", "columns", "prompt_parts"


class ReadFacts(Struct, frozen=True):
    """Facts of a trace besides its columns. `content` is a digest of its decompressed bytes.

    `gaps` counts requests that lack optional values. `names` has the distinct texts of a column by
    its name, such as "type" or "model", in the order of their numbers. `tenants` counts the
    combinations of model, adapter and cache salt, which share no blocks.

    `accepted` and `rejected` count the usable and unusable lines, `reasons` the latter by reason.
    `lines` has (line number, reason) of the first unusable ones, `places` the (file, line number)
    of each. `left_out` counts records that are no request, by reason. `spans` has the first and
    last arrival (s) by file, `cut` a note if the end is missing, else it is empty.
    """

    content: str
    bytes_on_disk: int
    block_size: int
    gaps: Gaps
    names: dict[str, tuple[str, ...]]
    tenants: int
    accepted: int
    rejected: int
    reasons: dict[str, int]
    lines: tuple[tuple[int, str], ...]
    places: tuple[tuple[str, int], ...]
    spans: dict[str, Span]
    notes: tuple[str, ...]
    left_out: dict[str, int]
    cut: str

    def rejects(self, path: str) -> Rejects:
        """Return the unusable lines of the trace at `path`."""
        places = dict(zip((line for line, _ in self.lines), self.places, strict=True))
        return Rejects(
            without_secrets(path),
            place=places.__getitem__,
            accepted=self.accepted,
            count=self.rejected,
            reasons=self.reasons,
            lines=[*self.lines],
        )


def read_files(
    path: str,
    chosen: type[TraceFormat],
    options: IngestOptions,
    spill: tuple[Cuts, int],
    folder: Path,
    advance: Callable[[int], None],
) -> None:
    """Read the trace at `path`, in the format `chosen`, into a folder.

    `spill` is (cuts, number of shards but the trunk). `advance` is called with bytes read.
    """
    with (
        whole_folder(folder) as draft,
        closing(Source(path, advance)) as source,
        Spill(draft, *spill) as paths,
    ):
        columns, reader, rejects, spans = read_columns(source, chosen, options, paths)
        paths.close()
        facts = ReadFacts(
            content="" if rejects.is_hopeless else source.drain(),
            bytes_on_disk=source.bytes_on_disk,
            block_size=columns.block_size,
            gaps=columns.gaps,
            names={name: tuple(known) for name, known in columns.names.items()},
            tenants=len(columns.tenants),
            accepted=rejects.accepted,
            rejected=rejects.count,
            reasons=rejects.reasons,
            lines=tuple((line, _text(reason)) for line, reason in rejects.lines),
            places=tuple(
                (_text(file), number)
                for file, number in (rejects.where_exactly(line) for line, _ in rejects.lines)
            ),
            spans={_text(file): span for file, span in spans.items()},
            notes=tuple(reader.notes),
            left_out=reader.left_out,
            cut=reader.cut,
        )
        rows = columns.arrays()
        del rows["leaf"]  # blocks have no numbers yet
        for name, arrays in ((_COLUMNS, rows), (_TREE, columns.parts._asdict())):
            (draft / name).mkdir()
            save_arrays(draft / name, arrays)
        (draft / _FACTS).write_bytes(msgspec.json.encode(facts))


def _text(text: str) -> str:
    """Return a text with its invalid Unicode replaced: a file's name may hold any bytes."""
    return text.encode(errors="replace").decode()


def load_facts(folder: Path) -> ReadFacts:
    """Return the facts that `read_files` wrote to a folder."""
    return msgspec.json.decode((folder / _FACTS).read_bytes(), type=ReadFacts)


def load_rows(folder: Path) -> dict[str, NDArray[Any]]:
    """Return the columns that `read_files` wrote, in file order, mapped into memory."""
    files = (folder / _COLUMNS).glob("*.npy")
    return {file.stem: load_array(folder / _COLUMNS, file.stem) for file in files}


def load_parts(folder: Path) -> PartTree:
    """Return the tree of prompt parts that `read_files` wrote to a folder."""
    return PartTree(*(load_array(folder / _TREE, name) for name in PartTree._fields))
