"""Attack by names: what a trace calls its users, models and kinds reaches no screen unescaped."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

from markdown_it import MarkdownIt

from dashboard.wording import escape
from tests.attack.attack import Attack, Case, Harm
from tests.attack.commands import DONE, USABLE, command
from tests.attack.mutations import NAMES
from tests.attack.trace_files import sample_lines

FIELDS = ("type", "user_id", "model", "lora_name", "cache_salt", "worker", "chat_id")
TAG = "attack-tag"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("traces",),
    ("analyze", "--full"),
    ("fit",),
    ("simulate", "--capacity-blocks", "40", "--policy", "lru,fifo"),
    ("runs", "list"),
    ("traces", "bad-lines"),
)


class Names(Attack):
    """Printed, written as HTML, Markdown or JSON: a name is text, never control or markup."""

    name = "names"
    target = "traces, files, users, models and kinds with control characters and markup"
    share = 0.05
    short = 2

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.records = [json.loads(line) for line in sample_lines("to-c", 90)]
        self.markdown = MarkdownIt("commonmark").enable(["table", "strikethrough"])

    def attempt(self, case: Case) -> int:
        """Store a trace full of such names under one, and print all that there is of it."""
        random, store = case.random, str(case.folder / "store.duckdb")
        path = case.folder / _file_name(random)
        path.write_bytes(self._trace(random))
        words = ["ingest", str(path), "--db", store, "--max-bad", "1"]
        name = f"t {random.choice(NAMES)}"
        if random.random() < 0.7 and "\0" not in name:
            words += ["--name", name]
        if command(*words).check(*USABLE).code:
            return 1
        stored = command("traces", "--json", "--db", store).check(DONE).document()
        name = stored["traces"][0]["name"]
        for line in COMMANDS:
            self._print(case, [*line, "--db", store], name)
        self._check_markdown(name)
        return len(COMMANDS)

    def _print(self, case: Case, words: list[str], name: str) -> None:
        """Run a command on the trace, with its HTML or its JSON where it has one."""
        html = case.folder / "out.html"
        reports = words[0] in {"analyze", "fit", "simulate"}
        if reports and case.random.random() < 0.5:
            words += ["--html", str(html)]
        elif words[1] != "bad-lines" and case.random.random() < 0.5:
            words += ["--json"]
        chosen = [] if words[:2] == ["traces", "--db"] else ["--", name]
        outcome = command(*words, *chosen).check(DONE)
        if words[-1] == "--json":
            outcome.document()
        if html.exists():
            _check_html(html.read_text())
            html.unlink()

    def _trace(self, random: Random) -> bytes:
        fields = random.sample(FIELDS, random.randint(1, len(FIELDS)))
        names = random.sample(NAMES, random.randint(1, 6))
        lines = [
            json.dumps(record | {field: random.choice(names) for field in fields})
            for record in self.records
        ]
        for name in names:  # bad lines, whose reasons repeat what is wrong with them
            odd: dict[str, Any] = random.choice(self.records) | {"input_length": name, name: name}
            lines.append(json.dumps(odd))
        return "\n".join(lines).encode()

    def _check_markdown(self, name: str) -> None:
        """Raise Harm if Markdown makes anything but a paragraph of an escaped name."""
        page = self.markdown.render(f"Trace {escape(name)} end")
        tags = _Tags()
        tags.feed(page)
        if {tag for tag, _ in tags.seen} - {"p"}:
            raise Harm(f"markup in Markdown: {page}")


class _Tags(HTMLParser):
    """The start tags of a page with their attributes' names."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.seen.append((tag, tuple(name for name, _ in attrs)))


def _check_html(page: str) -> None:
    """Raise Harm if a name has become an element or an event handler of the page."""
    tags = _Tags()
    tags.feed(page)
    for tag, attributes in tags.seen:
        if tag == TAG or any(name.startswith("on") for name in attributes):
            raise Harm(f"<{tag} {' '.join(attributes)}> in an HTML report")


def _file_name(random: Random) -> str:
    """Return a name that a file of one folder can have."""
    name = random.choice(NAMES).replace("\0", "").replace("/", "\u2215")
    return f"{name[:80].encode()[:200].decode(errors='ignore')}.jsonl"
