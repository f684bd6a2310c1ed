"""Scripts under a framework, unchanged; ranks; and the frameworks' callbacks."""

import socket
from pathlib import Path
from statistics import median

import pytest

from tests.integrations import running

FRAMEWORKS = {
    "huggingface": "transformers",
    "lightning": "lightning",
    "pytorch_lightning": "pytorch_lightning",
    "accelerate": "accelerate",
}
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_is_seen_through(name: str, workers: str, tmp_path: Path) -> None:
    pytest.importorskip(FRAMEWORKS[name])
    command = (running.script("framework.py"), name, workers)
    done = running.observed(tmp_path / "logs", *command)
    assert done.status == 0, done.errors
    assert done.json()["loss"] == running.bare(*command).json()["loss"]
    assert not done.log.problems
    (process,) = done.log.processes
    training = process.training
    assert training is not None
    assert len(training.steps) == 16
    assert training.batch_size == 4
    own = done.json()
    fetched = [seconds for loader in process.loaders for fetch in loader.fetches for seconds in fetch.item_s]
    assert all(seconds >= 0.01 for seconds in fetched)
    if workers == "0":
        assert median(fetched) == pytest.approx(median(own["items"]), rel=0.03)
        inside = [fetch.ended_s - fetch.began_s for fetch in training.fetches]
        assert median(step.wait_s for step in training.steps) == pytest.approx(median(inside), rel=0.05)
    forwards = [step.forward_s for loader in process.loaders for step in loader.steps if step.forward_s]
    assert median(forwards) == pytest.approx(median(own["forwards"]), rel=0.05)
    others = [each for each in process.loaders if each.steps and not each.trains]
    assert [each.batch_size for each in others] == ([] if name == "accelerate" else [8])
    if name in ("huggingface", "accelerate"):
        assert "accelerate" in training.made_by
        assert training.source is not None
    assert Path(training.site[0][0]).name == "framework.py"


@pytest.mark.parametrize("name", ["huggingface", "lightning", "pytorch_lightning"])
def test_a_callback_is_one_argument_to_the_trainer(name: str) -> None:
    pytest.importorskip(FRAMEWORKS[name])
    done = running.bare(running.script("framework.py"), name, "0", "callback")
    assert done.status == 0, done.errors
    assert done.json()["steps"] == 16


@pytest.mark.parametrize("start", ["torchrun", "spawn"])
def test_each_rank_has_a_log(start: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [running.script("ranks.py"), port]
    if start == "torchrun":
        command = ["torchrun", "--nproc-per-node", "2", "--master-port", port, *command]
    done = running.observed(tmp_path / "logs", *command)
    assert done.status == 0, done.errors
    processes = done.log.processes
    assert len(processes) == 2
    if start == "torchrun":
        assert [(each.rank, each.local_rank, each.world_size) for each in processes] == [(0, 0, 2), (1, 1, 2)]
    for process in processes:
        assert process.training is not None
        assert [len(each.steps) for each in process.loaders] == [4]
        assert process.loaders[0].fetches
