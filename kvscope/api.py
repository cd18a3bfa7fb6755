"""The Python API: `hash_logs`, `analyze`, `explain`, `fit`, `simulate`, `tune` and fleets.

    import kvscope

    trace = kvscope.open_trace("trace.jsonl")
    result = kvscope.tune(trace, slo="200ms", gpu="h100", model="llama3-8b")
    result.save("recommendation.toml")

Arguments are the options of the command line, under the same names: the same texts (`"80GiB"`,
`"200ms"`, `"p95"`) or plain numbers in bytes, seconds, tokens, blocks or shares from 0 to 1.
Nothing is written to disk unless `db` names a store. Mistakes raise UsageError, unreadable traces
InputError. Notes that the command line prints go to the logger `kvscope`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from kvscope.app.monitor import LogMonitor
from kvscope.app.options import (
    EARLIER,
    Reading,
    arguments_of,
    check_outputs,
    parsed,
    targets_of,
)
from kvscope.core.errors import InputError, KvscopeError, UsageError
from kvscope.core.files import check_replaceable, one_path
from kvscope.core.records import defaults
from kvscope.results import UseCaseResult, result_class
from kvscope.usecases import USE_CASES
from kvscope.usecases.base import Opened, use_case

if TYPE_CHECKING:
    from kvscope.core.trace import Trace
    from kvscope.store.file import StoreFile

__all__ = [
    "InputError",
    "KvscopeError",
    "OpenTrace",
    "UsageError",
    "hash_logs",
    "open_trace",
    "tune_fleet",
    "tune_tiers",
]

MEMORY = ":memory:"

T = TypeVar("T")

Share = str | float
"""A share: a text such as `"5%"`, or a fraction from 0 to 1."""


class OpenTrace:
    """A trace in a store; a context manager that closes the store.

    Several calls on one OpenTrace read its file once.
    """

    def __init__(self, store: StoreFile, facts: Trace) -> None:
        self.store = store
        self.facts = facts

    def __repr__(self) -> str:
        return f"<OpenTrace {self.facts.name!r}: {self.facts.requests:,} requests>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def to_dict(self) -> dict[str, Any]:
        """Return the facts of the trace, as under `trace` in every JSON document."""
        from kvscope.usecases.documents import to_dict

        return to_dict(self.facts)


Source = str | PathLike[str] | OpenTrace | None
"""A path, the name of a trace in the store `db`, an OpenTrace, or None: the last one used."""


def open_trace(
    source: str | PathLike[str] | Sequence[str | PathLike[str]] | None,
    *,
    db: str = MEMORY,
    name: str | None = None,
    trace_format: str | None = None,
    block_size: int | None = None,
    session_arrivals: str | float | None = None,
    seed: int = 0,
    turns: Literal["whole", "delta"] | None = None,
    strict: bool = False,
    max_bad: Share = 0.01,
) -> OpenTrace:
    """Return the trace at a path, ingested if the store lacks it, or a stored trace by its name.

    `source` None is the trace last used in the store `db`; several paths are read as one trace. The
    arguments after `db` are options of `kvscope ingest` for a new trace. `session_arrivals`: the
    arrival process, drawn with `seed`, of sessions that have no common clock: "poisson:0.5/s"
    (None: back to back). `turns`: each row of a session holds its "whole" prompt, or only what is
    new ("delta"); None: as the rows show. `max_bad`: the largest share of bad lines; with `strict`,
    none.
    """
    reading = parsed(Reading, locals())
    from kvscope.app.traces import TraceSource

    if isinstance(source, str | PathLike):
        source = [source]
    named = TraceSource.of(one_path([fspath(each) for each in source]) if source else None)
    store = named.store(db, LogMonitor().note)
    try:
        return OpenTrace(store, named.load(store, LogMonitor(), reading))
    except BaseException:
        store.close()
        raise


def hash_logs(
    logs: str | PathLike[str] | Sequence[str | PathLike[str]],
    output: str | PathLike[str],
    *,
    tokenizer: str | PathLike[str],
    log_format: (
        Literal["openai", "litellm", "helicone", "langfuse", "otlp", "openinference", "sglang"]
        | None
    ) = None,
    block_size: int = 16,
    chat_template: str | PathLike[str] | None = None,
    parts: Literal["kinds", "names", "none"] = "kinds",
    salt_file: str | PathLike[str] | None = None,
    strict: bool = False,
    max_bad: Share = 0.01,
    force: bool = False,
) -> int:
    """Write logs with prompts as a trace of hashes, lengths and times; return the request count.

    `parts` says what to keep of prompts' parts: "kinds" and ends, also tools' "names", or "none".
    Without `force`, raises UsageError if `output` exists, except files that kvscope marks as its
    own, HTML reports and TOML settings: a trace is not replaced.
    """
    from kvscope.app.hash_logs import HashOptions
    from kvscope.app.hash_logs import hash_logs as run

    named = {name: fspath(value) for name, value in locals().items() if isinstance(value, PathLike)}
    paths = [logs] if isinstance(logs, str | PathLike) else logs
    check_replaceable(fspath(output), force=force)
    with _arguments():
        options = parsed(HashOptions, locals() | named)
    return run([fspath(path) for path in paths], options, LogMonitor()).requests


def tune_fleet(trace: Source, **options: Any) -> UseCaseResult:
    """Return `tune` with `fleet=True`; deprecated, to be removed in the next version."""
    return function_of("tune")(trace, **{**options, "fleet": True})


def tune_tiers(trace: Source, **options: Any) -> UseCaseResult:
    """Return `tune` with `compare_tiers=True`; deprecated, to be removed in the next version."""
    return function_of("tune")(trace, **{**options, "compare_tiers": True})


def function_of(name: str) -> Callable[..., UseCaseResult]:
    """Return the function of a command; its arguments are the options of the command.

    If called without `force`, it raises UsageError for an output file that kvscope did not write.
    """
    case = use_case(name)
    targets = targets_of(case.options)
    stated = defaults(case.options)
    keyword, missing = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    positional = {"trace"} if case.takes_trace else arguments_of(case.options)
    names = [*(["trace"] if case.takes_trace else []), *case.options.__struct_fields__]
    signature = inspect.Signature(
        [
            inspect.Parameter(
                each,
                inspect.Parameter.POSITIONAL_OR_KEYWORD if each in positional else keyword,
                default=stated.get(each, missing),
            )
            for each in names
        ]
        + [inspect.Parameter("db", keyword, default=MEMORY)]
        + [inspect.Parameter("force", keyword, default=False)] * bool(targets)
    )

    earlier = EARLIER.get(name, {})
    present = {old.replace("-", "_"): new.replace("-", "_") for old, new in earlier.items()}

    def run(*places: Any, **named: Any) -> UseCaseResult:
        bound = signature.bind(*places, **{present.get(each, each): named[each] for each in named})
        bound.apply_defaults()
        arguments = {
            each: fspath(value) if isinstance(value, PathLike) and each != "trace" else value
            for each, value in bound.arguments.items()
        }
        with _arguments():
            writes = {each: arguments[each] for each in targets if arguments[each]}
            check_outputs(writes, _reads(arguments, writes))
            for path in writes.values():
                check_replaceable(path, force=arguments["force"])
            request = case.check(parsed(case.options, arguments))
        with _subject(arguments.get("trace", ...), arguments["db"], writes) as subject:
            return result_class(name)(case, case.run(subject, request, LogMonitor()))

    run.__name__ = run.__qualname__ = USE_CASES[name].function
    run.__doc__ = case.help
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


def _reads(arguments: Mapping[str, Any], writes: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments that may name input files, by name: all but those in `writes`.

    `writes` has the paths of output files by the name of their argument.
    """
    return {
        name: fspath(value) if isinstance(value, PathLike) else value
        for name, value in arguments.items()
        if name not in writes
    }


@contextmanager
def _subject(source: Any, db: str, writes: Mapping[str, str]) -> Iterator[Opened]:
    """Yield the store `db` with the opened trace `source`.

    If that is `...` (a use case without a trace), yield the store alone. `writes` has the paths of
    output files by the name of their argument: raise UsageError if one is the trace or the store.
    """
    if source is ...:
        from kvscope.store.file import StoreFile

        with StoreFile(db) as store:
            yield Opened(store)
        return
    is_open = isinstance(source, OpenTrace)  # by its user, who closes it
    with nullcontext(source) if is_open else open_trace(source, db=db) as opened:
        check_outputs(writes, {"trace": opened.facts.source, "db": opened.store.path})
        yield Opened(opened.store, opened.facts.name, lambda _: opened.facts)


def __getattr__(name: str) -> Any:
    """Return the function of a use case, or the class of its result."""
    for command, entry in USE_CASES.items():
        if name == entry.function:
            return globals().setdefault(name, function_of(command))
        if name == entry.returns:
            return result_class(command)
    raise AttributeError(f"module 'kvscope.api' has no attribute {name!r}")


@contextmanager
def _arguments() -> Iterator[None]:
    """Rewrite UsageErrors of the block to name Python arguments instead of options."""
    try:
        yield
    except UsageError as error:
        where = error.where and error.where.replace("--", "").replace("-", "_")
        remedy = error.remedy and error.remedy.replace("--", "")
        raise UsageError(error.what, where=where, remedy=remedy) from None
