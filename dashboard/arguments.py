"""The command line of the dashboard's server, which its pages read too."""

from __future__ import annotations

import argparse
import sys

from kvscope.store.db import DEFAULT_PATH


def arguments() -> argparse.Namespace:
    """Return `host`, `port`, `db` and `folder` as the server was started with them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", default=DEFAULT_PATH)
    parser.add_argument("--folder")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8501)
    return parser.parse_known_args(sys.argv[1:])[0]
