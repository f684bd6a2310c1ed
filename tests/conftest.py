"""What every test shares: a cache folder of their own, so that no test touches the user's, and signals that arrive."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    before = os.environ.get("STOKER_CACHE")
    folder = tmp_path_factory.mktemp("cache")
    os.environ["STOKER_CACHE"] = str(folder)
    yield folder
    if before is None:
        os.environ.pop("STOKER_CACHE")
    else:
        os.environ["STOKER_CACHE"] = before


@pytest.fixture(scope="session", autouse=True)
def interrupts_arrive() -> None:
    """A shell that starts the tests in the background has them ignore SIGINT, and so would every process of theirs."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
