"""The workload of `train.py:workload`: a person's function, found, called and checked, each failing in one sentence."""

import contextlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from stoker.errors import InputError, StokerError
from stoker.workload.workload import Workload


def load_function(spec: str) -> Workload:
    """Import the file or module before the colon, call the function after it, and check what it gives."""
    target, _, name = spec.rpartition(":")
    if not target or not name.isidentifier():
        where = spec if spec.endswith(".py") else target
        raise InputError(f"{spec} names no function; write {where}:workload, where workload is a function in it")
    with contextlib.redirect_stdout(sys.stderr), _arguments(target):  # what it prints must not mix with ours (--json)
        module = _import_file(target) if _is_file(target) else _import_module(target)
        made = _find(module, target, name)
        workload = made if isinstance(made, Workload) else _call(made, spec)
    if not isinstance(workload, Workload):
        raise InputError(f"{spec} must return a stoker.Workload, but it returned {_a(workload)}")
    return workload if workload.name != "workload" else workload.with_(name=spec)


@contextlib.contextmanager
def _arguments(target: str) -> Iterator[None]:
    """A script that reads its arguments finds none: ours are not for it."""
    before = sys.argv
    sys.argv = [target]
    try:
        yield
    finally:
        sys.argv = before


def _is_file(target: str) -> bool:
    return target.endswith(".py") or "/" in target or "\\" in target


def _import_file(target: str) -> ModuleType:
    from stoker.workload.userfile import import_file

    path = Path(target).expanduser()
    if not path.is_file():
        raise InputError(f"there is no file {target}" if not path.is_dir() else f"{target} is a folder, not a file")
    if path.suffix != ".py":
        raise InputError(f"{target} is not a Python file: its name must end in .py")
    try:
        return import_file(path)
    except (Exception, SystemExit) as error:
        raise InputError(f"{target} could not be imported: {_told(error, path)}") from error


def _import_module(target: str) -> ModuleType:
    from stoker.workload.userfile import put_first

    put_first(Path.cwd())
    try:
        return importlib.import_module(target)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{target}.".startswith(f"{error.name}."):
            raise InputError(f"there is no module {error.name!r} in {Path.cwd()} or among the installed ones") from None
        raise InputError(f"{target} could not be imported: {_told(error, None)}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{target} could not be imported: {_told(error, None)}") from error


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
        raise InputError(f"{spec} failed: {_told(error, _file_of(function))}") from error


def _file_of(function: Any) -> Path | None:
    file = getattr(inspect.getmodule(function), "__file__", None)
    return Path(file) if file else None


def _told(error: BaseException, file: Path | None) -> str:
    """The person's exception in one sentence: its type, its message, and where in their code it came from."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}, line {error.lineno})"
    message = " ".join(str(error).split())
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if isinstance(error, SystemExit):
        what = f"it ended the program ({what}); put what a script does under if __name__ == '__main__'"
    frame = _their_frame(error, file)
    return f"{what} ({Path(frame.filename).name}, line {frame.lineno})" if frame is not None else what


def _their_frame(error: BaseException, file: Path | None) -> traceback.FrameSummary | None:
    """The innermost frame in the person's folder; the innermost outside the import system where we know no folder."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    here = [frame for frame in frames if Path(frame.filename) != Path(__file__) and "importlib" not in frame.filename]
    folder = file.resolve().parent if file is not None else Path.cwd()
    theirs = [
        frame
        for frame in here
        if Path(frame.filename).is_relative_to(folder) and "site-packages" not in Path(frame.filename).parts
    ]
    return next(reversed(theirs or here), None)


def _a(value: Any) -> str:
    name = type(value).__name__
    return "nothing (None)" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
