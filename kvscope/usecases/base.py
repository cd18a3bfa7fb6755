"""What a use case declares. This module loads neither NumPy nor a kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

from kvscope.app.gates import Figures, Known
from kvscope.app.options import AS_STORED, Reading

if TYPE_CHECKING:
    from kvscope.app.monitor import Monitor
    from kvscope.core.runs import Run
    from kvscope.core.trace import Trace
    from kvscope.ingest.pipeline import Foresee
    from kvscope.report.report import Report
    from kvscope.store.file import Stores

Asked = TypeVar("Asked")
Request = TypeVar("Request")
Result = TypeVar("Result")


class Opened(Struct, frozen=True):
    """The store, and the trace that a use case works on; `source` is what its user wrote.

    `load` returns the trace, ingested first where the store lacks it; it hands a new one to its
    argument before it is stored. `reading` says how a new one is read.
    """

    stores: Stores
    source: str | None = None
    load: Callable[[Foresee | None], Trace] | None = None
    reading: Reading = AS_STORED

    @property
    def trace(self) -> Trace:
        """The trace of a use case that takes one."""
        assert self.load is not None  # noqa: S101  (of a use case that takes none)
        return self.load(None)


class ResultFile(Struct, Generic[Result], frozen=True):
    """A file `of` something that a command writes, by default to `path`; - writes none.

    `write` returns what was done; what is worth keeping it replaces only by `force`. The store
    keeps `text` and `summary` with the report. `missing` says why there is none where the use case
    answers something else `instead`.
    """

    path: str
    missing: str
    write: Callable[..., str]
    text: Callable[[Result], str | None] | None = None
    summary: Callable[[Result], str] | None = None
    of: str = "recommendation"


class UseCase(Struct, Generic[Asked, Request, Result], frozen=True, kw_only=True):
    """A use case: what it is asked, what it answers, and how that is shown.

    `check` refuses wrong options before anything heavy loads; `run` computes. The fields of its
    result are the JSON document, version `schema`, all but those marked `Beside`; `table` is the
    list that `to_polars` returns. `reporting` names the module of `kvscope.report` that shows the
    result by its functions `screen` (by default all sections) and `sections`; one that is not of
    one trace has a `heading`. `sections` are the names that `--section` takes. `known` has the
    names of figures that `--fail-on` takes, None for no conditions. With `remembers`, the
    deployment and the SLO that earlier commands on the trace stated are filled in; without
    `takes_trace`, it works on the store alone, or without `takes_store` on neither. `stops`: Ctrl-C
    ends `run` early, which then raises Stopped or says what is `unfinished`. `fails`: exit code 4
    for this result. `keeps`: the store keeps the report. `instead` returns another answer where the
    request leaves open what to compute. `file` is what it writes. `of_run` has the figures of a
    stored run as a baseline.
    """

    name: str
    title: str
    options: type[Asked]
    check: Callable[[Asked], Request]
    run: Callable[[Opened, Request, Monitor], Result]
    table: str
    reporting: str
    sections: tuple[str, ...] = ()
    schema: int = 1
    takes_trace: bool = True
    takes_store: bool = True
    known: Callable[[Request], Known] | None = None
    figures: Callable[[Result], Figures] | None = None
    remembers: bool = False
    stops: bool = False
    unfinished: Callable[[Result], str] | None = None
    fails: Callable[[Result], bool] | None = None
    of_run: Callable[[Run], Figures] | None = None
    keeps: bool = False
    instead: Callable[[Opened, Request, Monitor], Report | None] | None = None
    file: ResultFile[Result] | None = None

    @property
    def help(self) -> str | None:
        """The command's: the docstring of the module."""
        return import_module(f"kvscope.usecases.{self.name}").__doc__

    def report(self, result: Result) -> Report:
        """Return a result in every form."""
        from kvscope.report.report import Report
        from kvscope.usecases.documents import document

        module = import_module(f"kvscope.report.{self.reporting}")
        figures = partial(self.figures, result) if self.figures else lambda: None
        return Report(
            self.title,
            getattr(result, "trace", None),
            document=lambda: document(self.name, result, figures(), self.schema),
            screen=lambda: getattr(module, "screen", module.sections)(result),
            sections=lambda: module.sections(result),
            heading=getattr(result, "heading", ("", "")),
        )


AnyUseCase: TypeAlias = UseCase[Any, Any, Any]


def use_case(name: str) -> AnyUseCase:
    """Return the use case of a command."""
    declared: AnyUseCase = import_module(f"kvscope.usecases.{name}").USE_CASE
    return declared
