"""`kvscope runs`: the replays that the store keeps, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.loading import load_trace
from kvscope.cli.options import DEFAULT_DB, Db, Json, KvDtype, Model, TraceArgument

if TYPE_CHECKING:
    from kvscope.core.kv_size import ModelKv
    from kvscope.core.runs import Run
    from kvscope.core.trace import Trace

_HELP = {"-h", "--help", "--debug"}


class ListByDefault(TyperGroup):
    """Sub-commands, of which `list` is meant where none is named: `kvscope runs TRACE`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """`args` with `list` in front where no sub-command is."""
        if not args or args[0] not in {*self.commands, *_HELP}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ListByDefault,
    help="The runs that `kvscope simulate` keeps: list and compare them, or remove some.",
)

Policies = Annotated[
    str | None,
    typer.Option(
        "--policy", metavar="NAME,...", help="Only runs of these policies.", show_default=False
    ),
]
All = Annotated[bool, typer.Option("--all", help="All runs of the trace.")]


@app.command("list")
def list_runs(
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    policy: Policies = None,
    model: Model = None,
    kv_dtype: KvDtype = None,
    as_json: Json = False,
) -> None:
    """List the kept runs of a trace, those with the same definition and latency together.

    `list` may be left out: `kvscope runs TRACE`.
    """
    from kvscope.app.requests import kv_model
    from kvscope.store import results
    from kvscope.store.db import open_store

    kv = kv_model(model, kv_dtype)
    chosen = _policies(policy)
    with open_store(db) as store:
        found = load_trace(store, trace)
        kept = [one for one in results.all_runs(store, found) if _is_of(one.run, chosen)]
        runs = [one.run for one in (results.with_parts(store, kept) if as_json else kept)]
    if as_json:
        from kvscope.app.documents.runs import runs_document

        output.emit_json(runs_document(found, runs, kv))
    elif runs:
        _print(found, runs, kv)
    else:
        note(f"no such runs of {found.name!r} are kept; make some with `kvscope simulate`")


@app.command("remove")
def remove(
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    policy: Policies = None,
    every: All = False,
) -> None:
    """Remove kept runs of a trace: those of some policies, or all."""
    from kvscope.core.errors import UsageError
    from kvscope.store import results
    from kvscope.store.db import open_store

    chosen = _policies(policy)
    if (chosen is None) != every:
        raise UsageError(
            "not clear which runs", where="kvscope runs remove", remedy="give --policy or --all"
        )
    with open_store(db) as store:
        found = load_trace(store, trace)
        count = results.remove_runs(store, found, lambda run: _is_of(run, chosen))
    note(f"removed {count:,} runs of {found.name!r}")


def _policies(text: str | None) -> frozenset[str] | None:
    from kvscope.replay.policy_options import parse_policies

    if text is None:
        return None
    return frozenset(policy.name for policy in parse_policies(text, where="--policy"))


def _is_of(run: Run, chosen: frozenset[str] | None) -> bool:
    return chosen is None or run.policy in chosen


def _print(trace: Trace, runs: Sequence[Run], model: ModelKv | None) -> None:
    from kvscope.cli.rendering import show_sections
    from kvscope.report.policies import stored as stored_sections

    show_sections(stored_sections(trace, runs, model))
