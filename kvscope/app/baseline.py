"""`--baseline`: the earlier result that `--fail-on "regression>5%"` compares with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvscope.app.gates import REGRESSION, Figures, Gate
from kvscope.core.errors import InputError, UsageError
from kvscope.core.files import content_of

if TYPE_CHECKING:
    from kvscope.core.runs import Run
    from kvscope.core.trace import Trace
    from kvscope.store.db import Store
    from kvscope.store.file import Stores

RUN = "run:"


def baseline_figures(
    baseline: str | None,
    gates: Sequence[Gate],
    command: str,
    stores: Stores,
    of_run: Callable[[Run], Figures] | None = None,
) -> Figures | None:
    """Return the figures of a `baseline`, None without one.

    It is `run:N`, a replay by its number in `kvscope runs` whose figures are `of_run`, or the path
    of the JSON document of an earlier `command`. Raises UsageError where gates take a baseline and
    there is none, or there is one for nothing, and InputError for one that cannot be read.
    """
    needed = [gate for gate in gates if gate.is_regression]
    if baseline is None:
        if needed:
            raise UsageError(
                "needs a baseline",
                where=f"--fail-on {needed[0]}",
                remedy="add --baseline with the --json of an earlier result",
            )
        return None
    if not needed:
        raise UsageError(
            "nothing compares with it",
            where="--baseline",
            remedy=f'add --fail-on "{REGRESSION}>5%"',
        )
    if not baseline.startswith(RUN):
        return _of_document(read_document(baseline), command, baseline)
    if of_run is None:
        raise UsageError(
            "a stored run is a replay",
            where=f"--baseline {baseline}",
            remedy=f"name the file of an earlier `kvscope {command} --json`",
        )
    with stores.reading() as store:
        return of_run(stored_run(store, baseline)[1])


def stored_run(store: Store, name: str) -> tuple[Trace, Run]:
    """Return the run `run:N`, parts included, and its trace. Raises InputError without one."""
    from kvscope.store import results, traces

    number = name.removeprefix(RUN)
    for trace in traces.all_traces(store):
        for known in results.all_runs(store, trace):
            if str(known.run_id) == number:
                return trace, results.with_parts(store, [known])[0].run
    raise InputError(
        "the store has no such run", where=name, remedy="`kvscope runs` lists their numbers"
    )


def read_document(path: str) -> dict[str, Any]:
    """Return a document of `--json` from a file. Raises InputError where it holds none."""
    try:
        document = msgspec.json.decode(content_of(Path(path)))
    except OSError as error:
        raise InputError(error.strerror or "cannot be read", where=path) from error
    except msgspec.DecodeError as error:
        raise InputError(f"not JSON: {error}", where=path) from error
    if not isinstance(document, dict) or not {"kvscope", "command"} <= set(document):
        raise InputError(
            "not a document of kvscope", where=path, remedy="write one with --json > FILE"
        )
    return document


def _of_document(document: dict[str, Any], command: str, path: str) -> Figures:
    """Return the figures in a document."""
    if document["command"] != command:
        raise InputError(
            f"a document of `kvscope {document['command']}`, not of `kvscope {command}`", where=path
        )
    if "figures" not in document:
        raise InputError(
            f"written by kvscope {document['kvscope']}, which did not write figures",
            where=path,
            remedy="write it again with this version",
        )
    return dict(document["figures"])
