"""Seeded damage: to bytes, to JSON and TOML documents, and names that no terminal should see."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import tomli_w

TELLING = (
    *(b'"', b",", b"\n", b"\r", b"\r\n", b"{", b"}", b"[", b"]", b":", b"-", b"\\", b"\x00"),
    *(b"1e999", b"-1e999", b"NaN", b"Infinity", b"null", b"true", b'"\\ud800"', b"\xff"),
    *(b"\xef\xbb\xbf", b"\xf0\x9f\x98\x80", b"\x1b[2J", b"9" * 400, b"[" * 3000, b'{"a":' * 3000),
)
NUMBERS = (
    *(0, -1, 1, 7, 255, 2**15, 2**31 - 2, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63),
    *(2**64, -(2**31) - 1, -(2**63) - 1, 10**30, 10**400, 0.1, -0.0, 1.5, 5e-324, 1e12, 1e300),
    *(1.7e308, -1.7e308, float("nan"), float("inf"), float("-inf")),
)
NAMES = (
    "two\nlines",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "</script></style></title><attack-tag onload=alert(1)>",
    '"><attack-tag src=x onerror=alert(1)>',
    "{{7*7}} ${7*7} $x^2$ :red[red] :material/home: **bold** [link](javascript:alert(1))",
    "![](http://127.0.0.1:9/picture) <attack-tag> `code` # title | a | b |",
    "../../../../etc/passwd",
    "-rf",
    "--help",
    "'; DROP TABLE traces; --",
    "quo\"te's",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u202egnp.exe\u202c \u2066x\u2069 \u200b\u200f",
    "x" * 5000,
    "\r\rover",
    "\x00nul",
    "\x7f\x9b31m\x85next",
    "[bold]rich[/bold] [/] [link=file:///etc]x[/link]",
    " ",
    "",
    "NULL",
    "%s %d %n {0} {name}",
    "caf\u00e9 \u6f22\u5b57 \u0639\u0631\u0628",
)
"""For names in traces and of files: control characters, markup, directions, length."""


def odd_value(random: Random) -> Any:
    """Return a value that its reader does not expect: type, size, nesting."""
    kind = random.randrange(8)
    if kind < 3:
        return random.choice(NUMBERS)
    if kind == 3:
        return random.choice((None, True, False, "", "\ud800", "17", "-3", "nan", "1e9", [], {}))
    if kind == 4:
        return random.choice(NAMES)
    if kind == 5:
        return [random.choice((0, 1, "a", None, 2**63, -1, 1.5))] * random.choice((1, 2, 500))
    if kind == 6:
        nested: Any = random.choice(NUMBERS)
        for _ in range(random.choice((1, 3, 60, 250))):
            nested = [nested] if random.random() < 0.5 else {"a": nested}
        return nested
    return {random.choice(("a", "", "timestamp", "hash_ids")): random.choice(NUMBERS)}


def mutated_document(random: Random, document: Any) -> Any:
    """Return `document` with one to three of its values replaced, removed, renamed or repeated."""
    document = json.loads(json.dumps(document))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        document = _edited(random, document)
    return document


def _edited(random: Random, document: Any) -> Any:
    if not isinstance(document, dict | list) or not document:
        return odd_value(random)
    part: Any = document
    while True:
        key: Any = random.choice([*part] if isinstance(part, dict) else range(len(part)))
        if not part[key] or not isinstance(part[key], dict | list) or random.random() < 0.2:
            break
        part = part[key]
    edit = random.randrange(8)
    if edit == 0:
        del part[key]
    elif edit == 1 and isinstance(part, dict):
        part[random.choice((key.upper(), key + "s", key[:-1], random.choice(NAMES)))] = part[key]
    elif edit == 2:
        part[key] = [part[key]]
    elif edit == 3 and isinstance(part[key], int | float) and abs(part[key]) < 1e300:
        part[key] = part[key] * random.choice((-1, 0, 0.5, 3, 1e6))
    elif edit == 4:
        part[key] = str(part[key])
    else:
        part[key] = odd_value(random)
    return document


def as_toml(random: Random, document: Any) -> bytes:
    """Return the document as TOML, its bytes mutated where TOML has no such value."""
    try:
        return tomli_w.dumps(document).encode()
    except (AttributeError, TypeError, ValueError, RecursionError):
        return mutated_bytes(random, as_json(random, document).replace(b'":', b'"='))


def as_json(random: Random, document: Any) -> bytes:
    """Return the document as JSON, at times with a key twice, lone surrogates, or long spaces."""
    escaped = random.random() < 0.7
    text = json.dumps(document, ensure_ascii=escaped, separators=(",", ":"))
    if random.random() < 0.1 and isinstance(document, dict) and document:
        key = random.choice(list(document))
        twice = json.dumps({key: odd_value(random)})[1:-1]
        text = f"{text[:-1]},{twice}}}"
    if random.random() < 0.05:
        at = random.randrange(len(text) + 1)
        text = text[:at] + " " * random.choice((1, 70_000)) + text[at:]
    return text.encode("utf-8", "surrogatepass")


def mutated_bytes(random: Random, data: bytes) -> bytes:
    """Return `data` after one to four edits anywhere in it."""
    for _ in range(random.randint(1, 4)):
        at, size = random.randrange(len(data) + 1), 1 + random.randrange(1 + min(60, len(data)))
        edit = random.randrange(8)
        if edit < 2 and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        elif edit == 2:
            data = data[:at] + data[at + size :]
        elif edit == 3:
            data = data[: at + size] + data[at:]
        elif edit == 4 and random.random() < 0.4:
            data = data[:at]
        elif edit == 5:
            data = data[:at] + random.randbytes(size) + data[at + size :]
        else:
            data = data[:at] + random.choice(TELLING) + data[at + random.choice((0, 1, 5)) :]
    return data


def overwritten(random: Random, data: bytes, page: int) -> bytes:
    """Return `data` with bits flipped, pages overwritten, swapped or repeated, or cut short."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        edit = random.randrange(7)
        # The first pages say what the rest is.
        reach = len(changed) if random.random() < 0.6 else min(len(changed), 3 * page)
        at = random.randrange(max(reach, 1))
        start, other = at // page * page, random.randrange(max(len(changed), 1)) // page * page
        if edit == 0 and changed:
            changed[at] ^= 1 << random.randrange(8)
        elif edit == 1:
            changed[start : start + page] = bytes(len(changed[start : start + page]))
        elif edit == 2:
            changed[start : start + page] = random.randbytes(len(changed[start : start + page]))
        elif edit == 3:
            length = min(len(changed) - start, len(changed) - other, page)
            changed[start : start + length] = changed[other : other + length]
        elif edit == 4:
            del changed[at:]
        elif edit == 5:
            changed[at:at] = random.randbytes(random.choice((1, page)))
        else:
            changed[at : at + 8] = random.choice((b"\xff" * 8, bytes(8), b"SQLite f"))
    return bytes(changed)
