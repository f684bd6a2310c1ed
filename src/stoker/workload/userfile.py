"""Loads `train.py:workload`: imports the user's file or module, calls the function, and checks what it returns.

A file is imported as a module that any process can import again. DataLoader workers that are spawned find a class by
its module's name alone, in a fresh interpreter. The module has the file's own name if that is free. Otherwise it is
called `stoker.workload.userfile.NAME_PATH`, with the path in hexadecimal; importing this module teaches an interpreter
to find such names.
"""

import contextlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from stoker.errors import InputError, StokerError
from stoker.workload.workload import Workload

__path__: list[str] = []  # a package to the import system, so that names below this one can be imported

_versions: dict[str, tuple[int, int]] = {}


def load_function(spec: str) -> Workload:
    """Import the file or module before the colon and call the function after it. Raises InputError if one fails."""
    target, _, name = spec.rpartition(":")
    if not target or not name.isidentifier():
        where = spec if spec.endswith(".py") else target
        raise InputError(f"{spec} names no function; write {where}:workload, where workload is a function in it")
    with contextlib.redirect_stdout(sys.stderr), _arguments(target):  # its prints must not mix with our JSON
        module = _import_file(target) if _is_file(target) else _import_module(target)
        made = _find(module, target, name)
        workload = made if isinstance(made, Workload) else _call(made, spec)
    if not isinstance(workload, Workload):
        raise InputError(f"{spec} must return a stoker.Workload, but it returned {_a(workload)}")
    return workload if workload.name != "workload" else workload.with_(name=spec)


@contextlib.contextmanager
def _arguments(target: str) -> Iterator[None]:
    """Hide our command-line arguments from a script that reads its own."""
    before = sys.argv
    sys.argv = [target]
    try:
        yield
    finally:
        sys.argv = before


def _is_file(target: str) -> bool:
    return target.endswith(".py") or "/" in target or "\\" in target


def _import_file(target: str) -> ModuleType:
    path = Path(target).expanduser()
    if not path.is_file():
        raise InputError(f"there is no file {target}" if not path.is_dir() else f"{target} is a folder, not a file")
    if path.suffix != ".py":
        raise InputError(f"{target} is not a Python file: its name must end in .py")
    try:
        return import_file(path)
    except (Exception, SystemExit) as error:
        raise InputError(f"{target} could not be imported: {_sentence(error, path)}") from error


def _import_module(target: str) -> ModuleType:
    put_first(Path.cwd())
    try:
        return importlib.import_module(target)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{target}.".startswith(f"{error.name}."):
            raise InputError(f"there is no module {error.name!r} in {Path.cwd()} or among the installed ones") from None
        raise InputError(f"{target} could not be imported: {_sentence(error, None)}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{target} could not be imported: {_sentence(error, None)}") from error


def _find(module: ModuleType, target: str, name: str) -> Any:
    found = getattr(module, name, None)
    if callable(found) or isinstance(found, Workload):
        return found
    if found is not None:
        raise InputError(f"{target}'s {name!r} is {_a(found)}, not a function")
    own = [key for key, value in vars(module).items() if inspect.isfunction(value) and _is_own(module, key, value)]
    raise InputError(f"{target} has no function {name!r}; it has: {', '.join(own) or 'no functions'}")


def _is_own(module: ModuleType, name: str, function: Any) -> bool:
    return function.__module__ == module.__name__ and not name.startswith("_")


def _call(function: Callable[..., Any], spec: str) -> Any:
    try:
        needed = [
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):  # builtins may have no signature to look at
        needed = []
    if needed:
        raise InputError(f"{spec} must be callable without arguments, but it needs: {', '.join(needed)}")
    try:
        return function()
    except StokerError as error:
        raise InputError(f"{spec}: {error}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{spec} failed: {_sentence(error, _file_of(function))}") from error


def _file_of(function: Any) -> Path | None:
    file = getattr(inspect.getmodule(function), "__file__", None)
    return Path(file) if file else None


def _sentence(error: BaseException, file: Path | None) -> str:
    """The user's exception in one sentence: its type, its message, and the line of the user's code that raised it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}, line {error.lineno})"
    message = " ".join(str(error).split())
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if isinstance(error, SystemExit):
        what = f"it ended the program ({what}); put what a script does under if __name__ == '__main__'"
    frame = _user_frame(error, file)
    return f"{what} ({Path(frame.filename).name}, line {frame.lineno})" if frame is not None else what


def _user_frame(error: BaseException, file: Path | None) -> traceback.FrameSummary | None:
    """The innermost frame in the user's folder, else the innermost one outside the import system."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    here = [frame for frame in frames if Path(frame.filename) != Path(__file__) and "importlib" not in frame.filename]
    folder = file.resolve().parent if file is not None else Path.cwd()
    users = [
        frame
        for frame in here
        if Path(frame.filename).is_relative_to(folder) and "site-packages" not in Path(frame.filename).parts
    ]
    return next(reversed(users or here), None)


def _a(value: Any) -> str:
    name = type(value).__name__
    return "nothing (None)" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


# ---------------------------------------------------------------- a file as a module


def import_file(path: Path) -> ModuleType:
    """Run a file as a module, or return the module if the file has not changed since.

    The file's folder comes first on the search path, as for a script, and stays there: its functions may import from it
    later, and workers search it too.
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
    """Search this folder before all others, as Python does with the folder of a script."""
    if sys.path[:1] != [str(folder)]:
        sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
    importlib.invalidate_caches()  # a file may have been written a moment ago


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
