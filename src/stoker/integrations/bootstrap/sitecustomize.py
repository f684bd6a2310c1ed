"""Python imports this first in each of the script's processes, as `stoker run` put its folder first on PYTHONPATH.

It waits for torch's loader to be imported, and then makes way: the folder leaves `sys.path`, and a `sitecustomize` that
it hid runs as it would have.
"""

import os
import sys
from typing import Any

_LOADER = "torch.utils.data.dataloader"
_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "_stoker_bootstrap"
_OLDEST = (3, 10)


class _Finder:
    """Finds nothing itself; lets the loader's module be observed once it is there."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name != _LOADER:
            return None
        finders: Any = sys.meta_path
        finders.remove(_Finder)
        import importlib.util

        spec = importlib.util.find_spec(name)
        loader: Any = getattr(spec, "loader", None)
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module
            execute(module)
            _observe()

        loader.exec_module = exec_module
        return spec


def _observe() -> None:
    """Load this folder as a package of a name that no script has, and let it observe."""
    try:
        import importlib

        journal = importlib.import_module(f"{_package()}.journal")
        settings = journal.settings_from(os.environ)
        if settings is None:
            return
        try:
            observer = importlib.import_module(f"{_PACKAGE}.observer")
            observer.Observer(settings).install()
        except Exception as error:
            journal.report(settings.directory, "start", error)
    except Exception:  # the script goes on, whatever is wrong with us
        pass


def _package() -> str:
    import importlib.util

    place = os.path.join(_FOLDER, "__init__.py")
    spec: Any = importlib.util.spec_from_file_location(_PACKAGE, place, submodule_search_locations=[_FOLDER])
    sys.modules[_PACKAGE] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return _PACKAGE


def _make_way() -> None:
    sys.path[:] = [each for each in sys.path if each != _FOLDER]
    sys.path_importer_cache.pop(_FOLDER, None)
    own = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = own


if __name__ == "sitecustomize":
    if os.environ.get("STOKER_RUN") and sys.version_info >= _OLDEST:
        sys.meta_path.insert(0, _Finder)
    _make_way()
