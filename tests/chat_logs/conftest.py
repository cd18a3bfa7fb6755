"""A small tokenizer of a real kind, in the files that a model ships with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chat_logs.models import write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model with a chat template."""
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return folder
