"""`kvscope deployment`: show, create and check the deployment that other commands advise on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvscope.app.options import OUTPUT, DeploymentOptions, Option, Target
from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.options import Json, default_command, parsed_by
from kvscope.core.errors import UsageError

FILE = "kvscope.toml"


app = typer.Typer(
    cls=default_command("show"),
    help="The deployment that kvscope advises on: GPUs, model, engine, pool and latency.",
)

FileArgument = Annotated[
    str,
    typer.Argument(metavar="FILE", parser=parsed_by(str), help="The file.", show_default=FILE),
]
Output = Annotated[str, Target("File to write.", flags=OUTPUT, default="./kvscope.toml")]
Force = Annotated[bool, Option("Replace a file that is there.")]


@app.command("show")
def show(*, options: DeploymentOptions, as_json: Json = False) -> None:
    """Show a deployment: its KV pool with the terms, its latency, and the uncertainties.

    Without options, show the deployment of kvscope.toml. The word `show` may be left out.
    """
    from kvscope.app.deployment import resolved_deployment

    deployment = resolved_deployment(options)
    if deployment is None:
        raise UsageError(
            "no deployment",
            remedy="name --gpu and --model, or write a kvscope.toml with `kvscope deployment"
            " create --gpu GPU --model MODEL`",
        )
    if as_json:
        from kvscope.latency.profile import TO_FIT

        if deployment.latency == TO_FIT:
            raise UsageError(
                "has no figures until a trace is read",
                where="--latency trace",
                remedy="name --gpu and --model for a roofline, or leave out --json",
            )
        output.emit_result("deployment", deployment)
    else:
        from kvscope.report.deployment import sections

        output.show_sections(sections(deployment))


@app.command("create")
def create(*, options: DeploymentOptions, output_file: Output = FILE, force: Force = False) -> None:
    """Write the deployment of these options to kvscope.toml or another file."""
    from kvscope.app.deployment import resolved_deployment, stated_deployment
    from kvscope.deployment.file import write_deployment

    resolved, stated = resolved_deployment(options), stated_deployment(options)
    if resolved is None or stated is None:
        raise UsageError("no deployment", remedy="name --gpu and --model")
    path = Path(output_file)
    if path.exists() and not force:
        raise UsageError("there is such a file", where=str(path), remedy="replace it with --force")
    write_deployment(path, stated, [resolved.summary])
    note(f"deployment written to {path}: {resolved.summary}")


@app.command("check")
def check(path: FileArgument = FILE) -> None:
    """Check a deployment's file; an error names the wrong key, with exit code 3."""
    from kvscope.app.deployment import resolved_file

    output.emit(f"{path}: {resolved_file(Path(path)).summary}")
