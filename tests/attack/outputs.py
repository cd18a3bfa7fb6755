"""Attack by outputs: what a command reads is never what it writes, whatever path leads there."""

from __future__ import annotations

import os
from contextlib import chdir
from pathlib import Path
from random import Random

from kvscope.core.errors import ExitCode
from kvscope.core.files import TOML_MARK
from tests.attack.attack import Attack, Case, Harm
from tests.attack.commands import DONE, command
from tests.attack.trace_files import sample_lines

COMMANDS = (
    "analyze {trace} --db {store} --html {to}",
    "fit {trace} --db {store} --html {to}",
    "fit {trace} --db {store} --export {to}",
    "explain {trace} --db {store} --capacity-blocks 40 --html {to}",
    "simulate {trace} --db {store} --capacity-blocks 40 --policy lru --html {to}",
    "tune {trace} --db {store} --slo 150ms --capacity-blocks 90 --policy tlru --output {to}",
    "export {trace} --db {store} --to mooncake --output {to}",
    "diff {trace} trace --db {store} --html {to}",
    "doctor --db {store} --save-to {to}",
    "ingest {trace} --db {store} --into {to}",
)
UNNAMED = (
    "analyze {trace} --db {store} --html {to}",
    "export {trace} --db {store} --to mooncake --output {to}",
    "tune {trace} --db {store} --slo 150ms --policy lru --output {to}",
    "fleet {trace} --db {store} --slo 1s --policy lru --perfetto {to}",
    "fit {trace} --db {store} --deployment kvscope.toml --export {to}",
)
"""Commands where a kvscope.toml is, which they read, as they do the files that it names."""


class Outputs(Attack):
    """Traces, stores, datasets and what a stored trace was read from, as files to write."""

    name = "outputs"
    target = "commands whose output is an input, by its name, a link or another path"
    share = 0.05
    short = 6

    def attempt(self, case: Case) -> int:
        """Let each command write where something is that it reads; all of that has to be as it was.

        A file that is there and is not read may be replaced by `--force`, which every command gets.
        """
        trace, store = case.folder / "trace.jsonl", case.folder / "store.duckdb"
        trace.write_bytes(b"\n".join(sample_lines("to-c", 60)) + b"\n")
        command("ingest", str(trace), "--db", str(store)).check(DONE)
        alone = ("--workers", "1")  # to start others takes longer than all the rest
        command("ingest", str(trace), "--into", str(case.folder / "set"), *alone).check(DONE)
        random = case.random
        for line in random.sample(COMMANDS, 4):
            read = random.choice((trace, store, case.folder / "set"))
            into = [each for each in (case.folder / "set").rglob("*") if each.is_file()]
            chosen = random.choice(into) if read.is_dir() else read
            named = "trace" if random.random() < 0.4 else str(trace)
            words = line.format(
                trace=str(read) if read.is_dir() else named, store=store, to=_path(random, chosen)
            ).split()
            if words[0] not in {"ingest", "doctor"}:
                words.append("--force")
            before = {each: each.read_bytes() for each in (trace, store, *into)}
            outcome = command(*words).check(ExitCode.USAGE, ExitCode.INPUT)
            if {each: each.read_bytes() for each in before} != before:
                raise Harm(f"an input is another: kvscope {' '.join(outcome.words)}")
        self._write_where_none_is_named(case, trace, store)
        return 5

    def _write_where_none_is_named(self, case: Case, trace: Path, store: Path) -> None:
        """Let a command write over settings that it reads, or what they name."""
        settings, log = case.folder / "kvscope.toml", case.folder / "engine.log"
        mark = f"{TOML_MARK}1\nschema = 1\nmodel = 'llama3-8b'\nengine_log = 'engine.log'\n"
        settings.write_text(mark)
        log.write_text("INFO GPU KV cache size: 163,168 tokens\n")
        before = {each: each.read_bytes() for each in (settings, log)}
        line, to = case.random.choice(UNNAMED), _path(case.random, case.random.choice([*before]))
        words = [*line.format(trace=trace, store=store, to=to).split(), "--force"]
        with chdir(case.folder):
            outcome = command(*words).check(ExitCode.USAGE)
        if {each: each.read_bytes() for each in before} != before:
            raise Harm(f"settings are others: kvscope {' '.join(outcome.words)}")


def _path(random: Random, file: Path) -> str:
    """Return a path to a file: its own, one around, a link of either kind."""
    way = random.randrange(4)
    if way == 0:
        return str(file)
    if way == 1:
        return f"{file.parent}/../{file.parent.name}/{file.name}"
    link = file.with_name(f"link-{random.random()}")
    if way == 2:
        link.symlink_to(file)
    else:
        os.link(file, link)
    return str(link)
