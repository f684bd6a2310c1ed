"""Children of these tests are forked from a server that has imported torch, as those of `limit` are."""

import pytest

from stoker.measure.session import trial_server


@pytest.fixture(scope="session", autouse=True)
def _server() -> None:
    trial_server()
