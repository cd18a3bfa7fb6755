"""Measure `kvscope hash` against its tokenizer alone, on the same prompts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import ROOT
from benchmarks.processes import note
from benchmarks.table import Table
from kvscope.app.hash_logs import HashOptions, hash_logs
from kvscope.app.monitor import Monitor
from kvscope.chat_logs.formats.base import Chat, LoggedRequest, Message
from kvscope.chat_logs.tokenizer import HuggingFaceTokenizer, Text

LEAST_RATIO = 0.8
CHATS, TURNS, WORDS, BATCH = 600, 4, 150, 64
TRAINED = 16_384  # the vocabulary that is trained where no tokenizer is named
TEMPLATE = """\
{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}
{{- '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}
"""


def table(tokenizer: Path | None, rounds: int) -> Table:
    """Return a row: the time of both, runs interleaved, and their ratio.

    `tokenizer` is a model's folder; None trains a tokenizer on the docs.
    """
    from tokenizers import Tokenizer

    chats = [*_chats(CHATS)]
    with TemporaryDirectory() as name:
        folder = Path(name)
        template = folder / "template.jinja"
        template.write_text(TEMPLATE, encoding="utf-8")
        model = tokenizer or _trained(folder / "model")
        log = folder / "log.jsonl"
        lines = [
            json.dumps({"messages": chat, "usage": {"completion_tokens": 9}}) for chat in chats
        ]
        log.write_text("\n".join(lines), encoding="utf-8")
        options = HashOptions(
            tokenizer=str(model), output=str(folder / "trace"), chat_template=str(template)
        )
        ours = HuggingFaceTokenizer(model, str(template))
        texts = [ours.prompt(LoggedRequest(prompt=Chat(chat))) for chat in chats]
        batches = [
            [text for text in texts[at : at + BATCH] if isinstance(text, Text)]
            for at in range(0, len(texts), BATCH)
        ]
        library = Tokenizer.from_file(str(model / "tokenizer.json"))
        plain = [[text.text for text in batch] for batch in batches]
        note("kvscope hash: the tokenizer alone, and the command")
        load_s = _seconds(lambda: HuggingFaceTokenizer(model, str(template)))
        alone, whole = [], []
        for _ in range(rounds):
            alone.append(_seconds(lambda: [library.encode_batch_fast(batch) for batch in plain]))
            whole.append(_seconds(lambda: hash_logs([str(log)], options, Monitor())) - load_s)
        tokens = sum(len(each.tokens) for batch in batches for each in ours.encode(batch))
    alone_s, whole_s = median(alone), median(whole)
    row = [
        "named" if tokenizer else f"trained, {TRAINED:,} tokens",
        f"{len(chats):,}",
        f"{tokens:,}",
        f"{alone_s:.2f}",
        f"{whole_s:.2f}",
        f"{tokens / whole_s / 1e6:.2f}",
        f"{alone_s / whole_s:.2f} (at least {LEAST_RATIO:g})",
    ]
    return Table(
        "kvscope hash",
        "`kvscope hash` of a log of chats, from file to file, against `encode_batch_fast` of the"
        " same rendered prompts on all cores. Loading the tokenizer is left out of both.",
        ("tokenizer", "requests", "tokens", "tokenizer, s", "hash, s", "M tokens/s", "ratio"),
        [row],
    )


def _seconds(call: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def _chats(count: int) -> Iterator[list[Message]]:
    """Yield the requests of chats made of the words of the docs, as their clients send them."""
    random, words = Random(1), _text().split(" ")
    for _ in range(count):
        chat: list[Message] = []
        for _ in range(TURNS):
            for role in ("user", "assistant"):
                at = random.randrange(len(words) - WORDS)
                chat.append({"role": role, "content": " ".join(words[at : at + WORDS])})
                if role == "user":
                    yield list(chat)


def _text() -> str:
    pages: Sequence[Path] = sorted((ROOT / "docs").glob("*.md"))
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def _trained(folder: Path) -> Path:
    """Train a byte-level BPE tokenizer and return its folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=TRAINED,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_text()], trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
