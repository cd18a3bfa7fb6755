"""What the page Overview does with a trace that is named or uploaded: `kvscope ingest`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from dashboard.connection import writing
from dashboard.job import Job
from kvscope.core.errors import InputError
from kvscope.core.trace import Trace
from kvscope.ingest.pipeline import UnusableLinesError, ingest
from kvscope.store import traces

Refused = tuple[str, list[str]]


def read(job: Job, path: str, upload: tuple[str, bytes] | None) -> tuple[Trace | None, Refused]:
    """The trace at `path`, or that in a file of this name and content, and why it was refused."""
    if upload is None:
        return _ingested(job, path)
    name, content = upload
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / Path(name).name
        copy.write_bytes(content)
        return _ingested(job, str(copy))


def _ingested(job: Job, path: str) -> tuple[Trace | None, Refused]:
    where = Path(path)
    if where.is_dir():
        raise InputError("a folder, not a trace", where=path, remedy="name a file in it")
    size = where.stat().st_size if where.is_file() else None
    try:
        with writing() as store, job.steps(f"Reading {where.name}", size) as advance:

            def read_on(amount: int) -> None:
                job.check()
                advance(amount)

            found = ingest(store, path, advance=read_on)
            traces.mark_used(store, found.trace)
    except UnusableLinesError as error:
        return None, (str(error), error.rejects.in_words())
    return found.trace, ("", [])
