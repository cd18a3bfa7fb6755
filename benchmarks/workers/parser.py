"""Parse a trace with msgspec alone, line by line into typed objects that nothing keeps.

Argument: TRACE, of Qwen-Bailian lines. Prints the number of hash ids.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import msgspec


class Line(msgspec.Struct, gc=False):
    """The keys that an analysis needs."""

    chat_id: int
    parent_chat_id: int
    timestamp: float
    input_length: int
    output_length: int
    type: str
    turn: int
    hash_ids: list[int]


def main() -> None:
    """Run the command line."""
    gc.disable()
    decode = msgspec.json.Decoder(Line).decode
    with Path(sys.argv[1]).open("rb") as lines:
        count = sum(len(decode(line).hash_ids) for line in lines)
    print(json.dumps({"accesses": count}))


if __name__ == "__main__":
    main()
