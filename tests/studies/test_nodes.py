"""What a runner finds and does on its node, without a cluster."""

import os
import tempfile
import time
from pathlib import Path

import msgspec
import pytest

from stoker.machine.cpu import affinity, cores
from stoker.process import child
from stoker.records import Extent, Setting, Task, WorkloadSpec, decode, encode
from stoker.studies.executors import Finished
from stoker.studies.nodes import NeededPath, Node, Runner, needed_paths, share_of

SMALL = Path(__file__).parents[1] / "workloads" / "small.py"


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner changes the process that it is in: here that is put back."""
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())
    for name in ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "/tmp"))
    monkeypatch.delenv("OMP_NUM_THREADS")
    child.stop()


def task(spec: str, **parts: str) -> Task:
    return Task(
        workload=WorkloadSpec(spec=spec, items=8, **parts),
        mode="infer",
        device="sleep:0s",
        setting=Setting(batch_size=4),
        extent=Extent(batches=None, warmup=0),
    )


def described(needed: tuple[NeededPath, ...]) -> Node:
    return decode(Runner(str(Path.cwd()), False, None).describe(encode(needed)), Node)


def test_paths_are_those_that_tasks_name_and_synthetic_data_is_none() -> None:
    tasks = [task(f"{SMALL}:inference"), task("resnet18", data="jpeg"), task("resnet18", data="birds", weights="w.pt")]
    assert [each.path for each in needed_paths(tasks)] == [str(SMALL), "birds", "w.pt"]
    assert needed_paths([task("package.module:workload"), Task(workload=None)]) == ()


def test_a_node_with_everything_lacks_nothing_and_knows_its_versions() -> None:
    node = described(needed_paths([task(f"{SMALL}:inference")]))
    assert node.lacks == ()
    assert set(node.versions) == {"stoker", "torch", "python"}


def test_a_path_that_is_not_there_or_has_other_content_is_named(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def workload(): ...\n")
    needed = needed_paths([task(f"{file}:workload"), task("resnet18", data=str(tmp_path / "birds"))])
    file.write_text("def workload(): return 1\n")
    assert described(needed).lacks == (f"{file} has other content", f"{tmp_path / 'birds'} is not there")


def test_temporary_files_are_gone_with_the_runner() -> None:
    runner = Runner(str(Path.cwd()), False, None)
    folder = Path(tempfile.gettempdir())
    assert folder.name.startswith("stoker-node-")
    (folder / "left by a run").touch()
    time.sleep(2)
    assert folder.exists(), "as long as the runner is there"
    del runner
    deadline = time.monotonic() + 30
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_runner_gives_what_became_of_a_task() -> None:
    runner = Runner(str(Path.cwd()), False, None)
    finished = msgspec.msgpack.decode(runner.run(encode(task(f"{SMALL}:inference")), 60.0), type=Finished)
    assert (finished.outcome, finished.figures["run_items"]) == ("done", 8)
    assert finished.document is not None
    failed = msgspec.msgpack.decode(runner.run(encode(task("resnet1")), 60.0), type=Finished)
    assert failed.outcome == "failed"


@pytest.mark.parametrize(
    ("usable", "of", "shares"),
    [
        (8, 2, [[0, 4, 1, 5], [2, 6, 3, 7]]),
        (8, 4, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (4, 2, [[0, 4], [1, 5]]),
        (1, 2, [[0], [4]]),
        (8, 16, [[0], [4], [1], [5], [2], [6], [3], [7], [0]]),
    ],
)
def test_shares_of_a_nodes_cpus_are_whole_cores_as_far_as_there_are_enough(
    usable: int, of: int, shares: list[list[int]]
) -> None:
    found = [share_of([[0, 4], [1, 5], [2, 6], [3, 7]], usable, number, of) for number in range(len(shares))]
    assert found == shares


def test_the_cores_of_this_machine_have_its_usable_cpus() -> None:
    assert sum(map(len, cores())) == affinity()
