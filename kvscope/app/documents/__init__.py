"""The documents of `--json`: one file a topic, types first, then what builds them."""
