"""Addresses in texts, as they may be shown."""

import pytest

from kvscope.core.errors import InputError, without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host:9/a.jsonl?X-Amz-Signature=1", "https://host:9/a.jsonl"),
        ('no "http://me:p@w@host/x" there', 'no "http://host/x" there'),
        ("'https://h/a?b=1' s3://bucket/p?.jsonl", "'https://h/a' s3://bucket/p?.jsonl"),
        ("hf://datasets/o/n@main/x.jsonl", "hf://datasets/o/n@main/x.jsonl"),
        ("a.jsonl?: me@home", "a.jsonl?: me@home"),
    ],
)
def test_addresses_lose_user_and_query(text: str, shown: str) -> None:
    """Wherever they stand in a text; patterns of S3 stay, as do names with an @."""
    assert without_secrets(text) == shown


def test_errors_show_no_secret() -> None:
    """For every face: the fields and the line of an error are without them."""
    error = InputError("gone", where="https://me:pw@h/x?sig=1", remedy="see http://me:pw@h/")
    assert str(error) == "https://h/x: gone; see http://h/"
