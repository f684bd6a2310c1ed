"""Weights files of models, made once and read as a search reads downloaded ones."""

from pathlib import Path

import pytest
import torch

from stoker.errors import InputError
from stoker.machine.pagecache import resident
from stoker.studies.weights import weights_file
from stoker.workload import models


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path))


def test_a_file_is_made_once_and_fits_its_model() -> None:
    path = weights_file("squeezenet1_1", "warm")
    made = path.stat().st_mtime_ns
    assert weights_file("squeezenet1_1", "warm").stat().st_mtime_ns == made
    model = models.build("squeezenet1_1", weights=path)
    state = torch.load(path, weights_only=True)
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert [each.name for each in path.parent.parent.iterdir() if ".partial" in each.name] == []


def test_a_warm_file_is_in_the_page_cache() -> None:
    assert resident([weights_file("squeezenet1_1", "warm")]) == 1.0


def test_an_unknown_model_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no model is called 'squeezenet9'"):
        weights_file("squeezenet9", "warm")
    assert list(tmp_path.rglob("*.pt")) == []
