"""`kvscope runs`: the replays that the store keeps, side by side."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperGroup

from kvscope.app.options import KvDtype, Model, Option
from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.options import DEFAULT_DB, Db, Json, TraceArgument
from kvscope.cli.terminal import Terminal
from kvscope.core.errors import UsageError

_HELP = {"-h", "--help", "--debug"}


class ListByDefault(TyperGroup):
    """Sub-commands, of which `list` is meant where none is named: `kvscope runs TRACE`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse `args`, with `list` in front where no sub-command is."""
        if not args or args[0] not in {*self.commands, *_HELP}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ListByDefault,
    help="The runs that `kvscope simulate` stored: list and compare them, or remove some.",
)

Policies = Annotated[
    str | None, Option("Only runs of these policies.", "NAME,...", flags=("--policy",))
]
All = Annotated[bool, Option("All runs of the trace.", flags=("--all",))]


@app.command("list")
def list_runs(
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    policies: Policies = None,
    model: Model = None,
    kv_dtype: KvDtype = None,
    as_json: Json = False,
) -> None:
    """List the stored runs of a trace, those with the same definition and latency together.

    `list` may be left out: `kvscope runs TRACE`.
    """
    from kvscope.app.requests import kv_model
    from kvscope.app.traces import load_trace
    from kvscope.store import results
    from kvscope.store.db import open_store

    kv = kv_model(model, kv_dtype)
    names = _names(policies)
    with open_store(db) as store:
        stored = load_trace(store, trace, Terminal())
        every = results.all_runs(store, stored)
        chosen = [each for each in every if names is None or each.run.policy in names]
        runs = [each.run for each in (results.with_parts(store, chosen) if as_json else chosen)]
    if as_json:
        from kvscope.app.documents.runs import runs_document

        output.emit_json(runs_document(stored, runs, kv))
    elif runs:
        from kvscope.report.policies import stored as stored_sections

        output.show_sections(stored_sections(stored, runs, kv))
    else:
        note(f"the store has no such runs of {stored.name!r}; make some with `kvscope simulate`")


@app.command("remove")
def remove(
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    policies: Policies = None,
    every: All = False,
) -> None:
    """Remove stored runs of a trace: those of some policies, or all."""
    from kvscope.app.traces import load_trace
    from kvscope.store import results
    from kvscope.store.db import open_store

    names = _names(policies)
    if (names is None) != every:
        raise UsageError(
            "not clear which runs", where="kvscope runs remove", remedy="give --policy or --all"
        )
    with open_store(db) as store:
        stored = load_trace(store, trace, Terminal())
        count = results.remove_runs(store, stored, lambda run: names is None or run.policy in names)
    note(f"removed {count:,} runs of {stored.name!r}")


def _names(policies: str | None) -> frozenset[str] | None:
    """Return the names of the policies that `--policy` lists, None for all."""
    from kvscope.replay.policy_options import parse_policies

    if policies is None:
        return None
    return frozenset(policy.name for policy in parse_policies(policies, where="--policy"))
