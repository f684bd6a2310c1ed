"""A person's file as a module that any process can import again: under its own name, or one that spells its path.

DataLoader workers that are spawned find a class by its module's name alone, in a fresh interpreter. A name that another
module has already taken would find the wrong one, so such a file is called `stoker.workload.userfile.NAME_PATH`, with
the path in hexadecimal; importing this module teaches an interpreter to read such names.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

__path__: list[str] = []  # a package to the import system, so that names below this one can be imported

_versions: dict[str, tuple[int, int]] = {}


def import_file(path: Path) -> ModuleType:
    """Run a file as a module, its folder first on the search path as for a script; again only where it has changed.

    The folder stays on the path: the file's functions may import from it later, and workers search it too.
    """
    path = path.resolve()
    put_first(path.parent)
    name = _name_for(path)
    stat = path.stat()
    version = (stat.st_mtime_ns, stat.st_size)
    known = sys.modules.get(name)
    if known is not None and _versions.setdefault(name, version) == version:
        return known
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    _versions[name] = version
    return module


def put_first(folder: Path) -> None:
    """Search a folder before all others, as Python does a script's."""
    if sys.path[:1] != [str(folder)]:
        sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
    importlib.invalidate_caches()  # files that were written a moment ago must be found


def _name_for(path: Path) -> str:
    stem = path.stem
    if not stem.isidentifier() or stem in sys.stdlib_module_names or stem in sys.builtin_module_names:
        return _spelled(path)
    taken = sys.modules.get(stem)
    if taken is not None:
        return stem if _is_file_of(getattr(taken, "__file__", None), path) else _spelled(path)
    found = PathFinder.find_spec(stem)  # a folder of that name beside it, or a module of that name before it, wins
    return stem if found is not None and _is_file_of(found.origin, path) else _spelled(path)


def _is_file_of(file: str | None, path: Path) -> bool:
    return file is not None and Path(file).resolve() == path


def _spelled(path: Path) -> str:
    readable = "".join(letter if letter.isalnum() else "_" for letter in path.stem)
    return f"{__name__}.{readable}_{str(path).encode().hex()}"


class _SpelledFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        if parent != __name__:
            return None
        try:
            file = Path(bytes.fromhex(name.rpartition("_")[2]).decode())
        except ValueError:
            return None
        put_first(file.parent)
        return spec_from_file_location(fullname, file)


sys.meta_path.append(_SpelledFinder())
