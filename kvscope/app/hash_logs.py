"""Hash logs: prompts become a trace of salted hashes, written whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from kvscope.app import values
from kvscope.app.monitor import Monitor
from kvscope.app.options import Options, Share, Source, TraceFile, option
from kvscope.core.errors import InputError, UsageError
from kvscope.core.files import one_path, sink, size_of

if TYPE_CHECKING:
    from kvscope.chat_logs.convert import HashCounts


_LEAST_LOSS = 0.01  # of the input tokens


class HashOptions(Options, frozen=True, kw_only=True):
    """Options of `hash`: the tokenizer, how prompts are hashed, and the output file.

    `parts` says what the trace keeps of the parts of prompts: their kinds and ends ("kinds"),
    tools' names, too ("names"), or nothing ("none"). `strict` stops at the first bad line;
    otherwise a log with more than the share `max_bad` (0 to 1) of bad lines is an error.
    """

    tokenizer: Annotated[
        str,
        Source(
            "The model's tokenizer: a folder with tokenizer.json and chat template, or a"
            " Mistral tekken.json."
        ),
    ]
    output: TraceFile
    log_format: (
        Literal["openai", "litellm", "helicone", "langfuse", "otlp", "openinference", "sglang"]
        | None
    ) = option("Format of the logs.", default="detected", flags=("--format",))
    block_size: int = option(
        "Tokens per block, of the trace as of the engine.", "TOKENS", values.whole(1), value=16
    )
    chat_template: str | None = Source(
        "Jinja file of another chat template.", default="the model's"
    )
    parts: Literal["kinds", "names", "none"] = option(
        "What to keep of a prompt's parts: their kinds (system, tool 3, user) and where each ends;"
        " tools' names, too; or nothing.",
        value="kinds",
    )
    salt_file: str | None = option(
        "File that keeps the salt, so that later logs get the same hashes; made if missing.",
        "PATH",
        values.existing_or_target,
        "a random salt, kept nowhere",
    )
    strict: bool = option("Stop at the first bad line, with exit code 3.", value=False)
    max_bad: float = Share(
        "Largest share of bad lines; with more nothing is written.", default="1%", value=0.01
    )


def hash_logs(logs: Sequence[str], options: HashOptions, monitor: Monitor) -> HashCounts:
    """Write the trace of all `logs`, in their order; return counts of requests and tokens.

    Raises InputError where a log or the tokenizer cannot be read, or too many lines are bad.
    """
    from kvscope.chat_logs import hashing, tokenizer
    from kvscope.chat_logs.convert import Converter, refuse_if_too_bad
    from kvscope.ingest.formats.base import Rejects, counted
    from kvscope.ingest.pipeline import UnusableLinesError

    if not logs:
        raise UsageError("no log is named", where="LOGS")
    model = tokenizer.load(options.tokenizer, options.chat_template)
    model.marks_parts = options.parts != "none"
    with (
        hashing.salt(options.salt_file) as salt,
        sink(options.output) as stream,
        monitor.steps("hashing", size_of(one_path(logs)), unit="bytes") as advance,
    ):
        read_on = monitor.checked(advance, "the trace was written")
        hasher, keeps_names = hashing.Hasher(salt, options.block_size), options.parts == "names"
        converter = Converter(model, hasher, options.block_size, keeps_names=keeps_names)
        for path in logs:
            rejects = Rejects(path, options.strict)
            for line in converter.lines(path, options.log_format, rejects, read_on):
                stream.write(line)
            try:
                refuse_if_too_bad(rejects, options.max_bad)
            except UnusableLinesError:
                if len(rejects.reasons) > 1:
                    _note_all(rejects.in_words(), monitor)
                raise
            _note_all(rejects.in_words(), monitor)
        if not converter.counts.requests:
            what = "; ".join(["no request is in these logs", *counted(converter.counts.left_out)])
            raise InputError(what, where=", ".join(logs))
    _note_all([*_notes(converter.counts), *model.notes], monitor)
    return converter.counts


def _note_all(texts: Sequence[str], monitor: Monitor) -> None:
    for text in texts:
        monitor.note(text)


def _notes(counts: HashCounts) -> list[str]:
    """Return notes on left-out lines, and on doubts about tokenizer, chat template and models."""
    from kvscope.ingest.formats.base import counted

    notes = counted(counts.left_out)
    if counts.unread_answers:
        notes.append(f"{counts.unread_answers:,} answers cannot be read: taken as 0 tokens")
    if counts.different:
        notes.append(
            f"the log states another prompt length for {counts.different:,} of"
            f" {counts.compared:,} requests: is this the tokenizer of the model that served them?"
        )
    breaks = counts.breaks
    if breaks.lost >= _LEAST_LOSS * counts.tokens:
        notes.append(
            f"the chat template breaks prefixes: {breaks.broken:,} of {breaks.compared:,} follow-up"
            " turns do not begin with the prompt before, though their messages do; that costs hits"
            f" of at least {100 * breaks.lost / counts.tokens:.1f}% of the input tokens"
        )
    models = [name for name, _ in counts.models.most_common() if name]
    if len(models) > 1:
        notes.append(
            f"{len(models)} models ({', '.join(models[:3])}"
            f"{', …' if len(models) > 3 else ''}), all hashed with one tokenizer"
        )
    return notes
