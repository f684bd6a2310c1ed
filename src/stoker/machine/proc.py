"""Small readers of the kernel's text files under /proc and /sys; what is missing or unreadable reads as None."""

import re
from pathlib import Path
from typing import NamedTuple

SLASH = Path("/")


class Mount(NamedTuple):
    """One line of /proc/self/mountinfo."""

    device: str
    root: str
    point: str
    filesystem: str
    source: str
    options: frozenset[str]


def text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def number(path: Path) -> int | None:
    """A file that holds one integer; `max` and anything else that is no number reads as None."""
    try:
        return int(text(path) or "")
    except ValueError:
        return None


def numbers(path: Path) -> dict[str, int]:
    """A file of lines `name value`, such as memory.stat, or `name: value kB`, such as meminfo (kB made bytes)."""
    found = {}
    for line in (text(path) or "").splitlines():
        name, value, unit = (*line.split(), "", "", "")[:3]
        if value.isdigit():
            found[name.rstrip(":")] = int(value) * (1024 if unit == "kB" else 1)
    return found


def field(path: Path, name: str) -> str | None:
    """The value of the first line `name : value`."""
    for line in (text(path) or "").splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == name:
            return value.strip()
    return None


def cpu_list(listed: str) -> frozenset[int]:
    """`0-3,8` as the CPUs 0, 1, 2, 3 and 8."""
    cpus: set[int] = set()
    for part in listed.split(","):
        first, _, last = part.strip().partition("-")
        if first:
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def mounts(root: Path = SLASH) -> tuple[Mount, ...]:
    """What is mounted where, in the kernel's order: a later line lies over an earlier one."""
    lines = (text(root / "proc/self/mountinfo") or "").splitlines()
    return tuple(mount for line in lines if (mount := _mount(line)) is not None)


def _mount(line: str) -> Mount | None:
    before, dash, after = line.partition(" - ")
    front, back = before.split(), after.split()
    if not dash or len(front) < 5 or len(back) < 2:
        return None
    options = frozenset(back[2].split(",")) if len(back) > 2 else frozenset()
    return Mount(front[2], _plain(front[3]), _plain(front[4]), back[0], _plain(back[1]), options)


def _plain(escaped: str) -> str:
    """Blanks and backslashes in a path come as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), escaped)


def under(root: Path, path: str) -> Path:
    """An absolute path of the machine, inside a recorded tree."""
    return root / path.lstrip("/")
