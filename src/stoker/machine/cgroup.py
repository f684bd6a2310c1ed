"""Where this process sits among the kernel's control groups: the folders whose limits bind it, innermost first."""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from stoker.machine.proc import SLASH, Mount, mounts, text, under

Controller = Literal["cpu", "memory"]


class Group(NamedTuple):
    """One control group; `version` says which names its files have."""

    version: Literal[1, 2]
    folder: Path


def groups(controller: Controller, root: Path = SLASH) -> tuple[Group, ...]:
    """Our group and every ancestor we can see, innermost first.

    On a hybrid machine both hierarchies are listed: a controller lives in one, and the other lacks its files.
    """
    memberships = _memberships(root)
    mounted = _cgroup_mounts(root)
    found: list[Group] = []
    version1 = [mount for mount in mounted if mount.filesystem == "cgroup" and controller in mount.options]
    version2 = [mount for mount in mounted if mount.filesystem == "cgroup2"]
    found += (Group(1, folder) for folder in _chain(version1, memberships.get(controller), root))
    found += (Group(2, folder) for folder in _chain(version2, memberships.get(""), root))
    return tuple(found)


def _memberships(root: Path) -> dict[str, str]:
    """Our path in each hierarchy, by controller; version 2 goes by the empty name."""
    listed = text(root / "proc/self/cgroup")
    if listed is None:
        return {"": "/", "cpu": "/", "memory": "/"}
    paths = {}
    for line in listed.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _chain(candidates: Sequence[Mount], path: str | None, root: Path) -> Iterator[Path]:
    if path is None or not candidates:
        return
    top, folder = _locate(candidates, path, root)
    while folder != top:
        yield folder
        folder = folder.parent
    yield top


def _locate(candidates: Sequence[Mount], path: str, root: Path) -> tuple[Path, Path]:
    """The top of the hierarchy as it is mounted here, and our folder under it."""
    for mount in reversed(candidates):
        top = under(root, mount.point)
        inside = _inside(mount.root, path)
        if inside is not None and (top / inside).is_dir():
            return top, top / inside
    # A container may be told its path on the host while only its own group is mounted: then the top is our group.
    top = under(root, candidates[-1].point)
    return top, top


def _inside(mounted_root: str, path: str) -> PurePosixPath | None:
    """`path` as seen below the part of the hierarchy that is mounted, or None where it lies outside."""
    if ".." in PurePosixPath(path).parts:
        return None
    try:
        return PurePosixPath(path).relative_to(mounted_root)
    except ValueError:
        return None


def _cgroup_mounts(root: Path) -> tuple[Mount, ...]:
    found = tuple(mount for mount in mounts(root) if mount.filesystem in ("cgroup", "cgroup2"))
    return found or tuple(_usual_mounts(root))


def _usual_mounts(root: Path) -> Iterator[Mount]:
    """Where /proc/self/mountinfo cannot be read: the places that every distribution uses."""
    top = root / "sys/fs/cgroup"
    for folder in (top, top / "unified"):
        if (folder / "cgroup.controllers").exists():
            yield _usual_mount(folder, root, "cgroup2")
    for folder in sorted(top.iterdir()) if top.is_dir() else ():
        if (folder / "cgroup.procs").exists() or (folder / "tasks").exists():
            yield _usual_mount(folder, root, "cgroup")


def _usual_mount(folder: Path, root: Path, filesystem: str) -> Mount:
    options = frozenset(folder.name.split(",")) if filesystem == "cgroup" else frozenset[str]()
    return Mount("0:0", "/", f"/{folder.relative_to(root)}", filesystem, "cgroup", options)
