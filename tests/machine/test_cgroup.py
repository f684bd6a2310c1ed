"""Which control groups bind us, on recorded trees of the layouts that machines and containers have."""

import shutil
from pathlib import Path

import pytest

from stoker.machine.cgroup import groups

TREES = Path(__file__).parents[1] / "trees"


def seen(tree: Path, controller: str) -> list[str]:
    """`version:folder` of each group, innermost first."""
    found = groups(controller, tree)  # type: ignore[arg-type]
    return [f"{group.version}:/{group.folder.relative_to(tree)}" for group in found]


def test_every_ancestor_is_seen_innermost_first() -> None:
    session = "2:/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/run-r42.scope"
    chain = [session]
    while chain[-1] != "2:/sys/fs/cgroup":
        chain.append(chain[-1].rpartition("/")[0])
    assert seen(TREES / "v2-nested", "cpu") == chain
    assert seen(TREES / "v2-nested", "memory") == chain
    assert len(chain) == 6


def test_a_container_with_its_own_namespace_sees_itself_at_the_top() -> None:
    assert seen(TREES / "v2-container", "cpu") == ["2:/sys/fs/cgroup"]


def test_a_container_that_is_told_its_path_on_the_host_has_it_mounted_at_the_top() -> None:
    assert seen(TREES / "v1-docker", "cpu") == ["1:/sys/fs/cgroup/cpu,cpuacct"]
    assert seen(TREES / "v1-docker", "memory") == ["1:/sys/fs/cgroup/memory"]


def test_a_path_that_is_not_under_the_mount_falls_back_to_the_top() -> None:
    assert seen(TREES / "v1-lost", "memory") == ["1:/sys/fs/cgroup/memory"]


def test_controllers_of_version_1_may_be_listed_in_any_order() -> None:
    top = "1:/sys/fs/cgroup/cpu,cpuacct"
    assert seen(TREES / "v1-nested", "cpu") == [
        f"{top}/slurm/uid_1000/job_42/step_0",
        f"{top}/slurm/uid_1000/job_42",
        f"{top}/slurm/uid_1000",
        f"{top}/slurm",
        top,
    ]


def test_a_hybrid_machine_lists_both_hierarchies() -> None:
    assert seen(TREES / "hybrid", "memory") == [
        "1:/sys/fs/cgroup/memory/jobs/job1",
        "1:/sys/fs/cgroup/memory/jobs",
        "1:/sys/fs/cgroup/memory",
        "2:/sys/fs/cgroup/unified",
    ]


def test_no_control_groups_is_an_empty_answer() -> None:
    assert seen(TREES / "none", "cpu") == []


@pytest.mark.parametrize("tree", ["v2-nested", "v2-container"])
def test_the_usual_places_serve_where_mounts_cannot_be_read(tmp_path: Path, tree: str) -> None:
    copy = shutil.copytree(TREES / tree, tmp_path / tree)
    (copy / "proc/self/mountinfo").unlink()
    assert seen(copy, "cpu") == seen(TREES / tree, "cpu")


def test_the_usual_places_of_version_1(tmp_path: Path) -> None:
    copy = shutil.copytree(TREES / "v1-nested", tmp_path / "tree")
    (copy / "proc/self/mountinfo").unlink()
    for name in ("cpu,cpuacct", "memory"):
        (copy / "sys/fs/cgroup" / name / "cgroup.procs").write_text("1\n")
    assert seen(copy, "memory") == seen(TREES / "v1-nested", "memory")


@pytest.mark.parametrize("path", ["/../neighbour", "/.."])
def test_a_path_out_of_the_namespace_never_leaves_the_mount(tmp_path: Path, path: str) -> None:
    copy = shutil.copytree(TREES / "v2-container", tmp_path / "tree")
    (copy / "sys/fs/neighbour").mkdir()
    (copy / "proc/self/cgroup").write_text(f"0::{path}\n")
    assert seen(copy, "cpu") == ["2:/sys/fs/cgroup"]


def test_a_blank_in_a_mount_point_is_read(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "my groups/inner").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/inner\n")
    (tmp_path / "proc/self/mountinfo").write_text("30 22 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n")
    assert seen(tmp_path, "cpu") == ["2:/my groups/inner", "2:/my groups"]
