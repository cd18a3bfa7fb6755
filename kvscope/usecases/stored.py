"""What a store has: traces, those just ingested, its soundness, runs and reports of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from kvscope.app.run_figures import StoredRun
from kvscope.core.trace import Trace

if TYPE_CHECKING:
    from kvscope.report.stored import StoredReport
    from kvscope.store.doctor import Saved, StoreHealth


class StoredTrace(Struct, frozen=True):
    """All that a store has of a trace itself."""

    DOCUMENT: ClassVar[str] = (
        "*trace source=trace.source has_users=trace.has_users lines=trace.lines"
        " out_of_order=trace.out_of_order notes=trace.notes"
    )
    trace: Trace


class IngestedTrace(StoredTrace, frozen=True):
    """A trace that was read; `created` is false where the store had it already."""

    DOCUMENT: ClassVar[str] = f"{StoredTrace.DOCUMENT} created"
    created: bool


class IngestedTraces(Struct, frozen=True):
    """What `kvscope ingest` read, in the order of the paths; `trace` is the last one."""

    DOCUMENT: ClassVar[str] = "trace ingested"
    ingested: tuple[IngestedTrace, ...]

    @property
    def trace(self) -> Trace:
        """The trace that was read last."""
        return self.ingested[-1].trace


class CheckedStore(Struct, frozen=True):
    """Whether a store is sound; `fault` is why its traces cannot be listed, or empty.

    `saved` is what `--save-to` copied.
    """

    DOCUMENT: ClassVar[str] = (
        "store=health.path sound=health.is_sound fault=health.fault traces=health.traces saved"
    )
    health: StoreHealth
    saved: Saved | None


class StoredResults(Struct, frozen=True):
    """The runs that the store keeps of a trace, and the reports of `tune` and `fleet`."""

    trace: Trace
    runs: tuple[StoredRun, ...]
    reports: tuple[StoredReport, ...]
