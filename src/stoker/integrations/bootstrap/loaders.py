"""The loaders of a process: where each was made and how, and the arguments that are set from outside."""

import sys
import weakref
from typing import Any

from .journal import Settings, is_of_signal, report
from .libraries import is_library

SETTABLE = (
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "in_order",
    "multiprocessing_context",
)
REBOUND = (*SETTABLE, "timeout")
"""What the constructor may have to be given in other form; without workers there is no timeout."""
_PREFETCH = 2
"""What the loader takes where nothing is said."""
_MOST_FRAMES = 6
_TORCH = "torch.utils.data.dataset"
_DEEPEST, _MOST, _MOST_OF_A_LIST = 4, 100, 20
"""What a stream holds is looked at so far."""
_PLUMBING = ("torch", "contextlib", "functools", "importlib", "runpy")
_REPLACING = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "deepspeed", "ray", "ignite")
"""Packages that take a loader and make another one over its dataset."""
_OWN = ("_stoker_bootstrap", "stoker")
_PLAIN = {*getattr(sys, "stdlib_module_names", ("builtins",)), "torch", "numpy", *_OWN}


class Loader:
    """All loaders of one place in the user's code that load alike, as for each epoch."""

    def __init__(self, number: int, loader: Any, made: "Creation") -> None:
        self.number, self._made = number, made
        self.batches, self.trains, self.written = 0, False, False
        self.source = made.source
        self._facts = _facts(loader)

    def facts(self) -> dict[str, Any]:
        """What is written of it."""
        made = self._made
        return {
            "loader": self.number,
            "site": made.site,
            "made_by": made.made_by,
            "source": self.source.number if self.source else None,
            "overridden": made.overridden,
            "read_at": made.read_at,
            **self._facts,
            "arguments": {**made.arguments, **self._facts["arguments"]},
        }


class Creation:
    """One call of `DataLoader(...)`."""

    def __init__(self) -> None:
        self.site: list[list[Any]] = []
        self.read_at: list[list[Any]] = []
        self.made_by: list[str] = []
        self.through: tuple[str, ...] = ()
        self.arguments: dict[str, Any] = {}
        self.overridden: dict[str, list[Any]] = {}
        self.source: Loader | None = None


def _made_before() -> Creation:
    """What is known of a loader that was made before anyone looked: where it is read for the first time."""
    made = Creation()
    made.read_at, made.made_by, _ = _place()
    return made


class Loaders:
    """Made once a process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: dict[int, tuple[Any, Creation]] = {}
        self._known: dict[Any, Loader] = {}
        self._targets = 0

    def made(self, loader: Any, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """A loader is being made; returns its arguments, where some are to be others."""
        creation = Creation()
        creation.site, creation.made_by, creation.through = _place()
        changed = self._overrides(arguments, creation) if self._settings.overrides else None
        creation.arguments = {name: _shown(value) for name, value in (changed or arguments).items()}
        if creation.made_by and creation.made_by[0] in _REPLACING:
            creation.source = self._over(arguments.get("dataset"))
        key = id(loader)
        self._made[key] = (weakref.ref(loader, lambda _: self._made.pop(key, None)), creation)
        return changed

    def of(self, loader: Any) -> Loader:
        """The loader that this object is one of."""
        entry = self._made.get(id(loader))
        made = entry[1] if entry is not None and entry[0]() is loader else _made_before()
        source = made.source.number if made.source is not None else None
        place = (*map(tuple, made.site), made.through, source) if made.site else id(loader)
        kinds = [type(each).__qualname__ for each in (loader, loader.dataset, getattr(loader, "sampler", None))]
        arguments = [_shown(getattr(loader, name, None)) for name in SETTABLE]
        key = (place, *kinds, *arguments, _items(loader), _batch_size(loader))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Loader(len(self._known), loader, made)
        return known

    def new(self, loader: Loader) -> list[Loader]:
        """Of a loader and the one that it replaces, those that were not written yet."""
        new = [each for each in (loader.source, loader) if each is not None and not each.written]
        for each in new:
            each.written = True
        return new

    def override(self, loader: Any) -> None:
        """A loader is about to be read. Where no loader that shuffles was made, the first one that is read with
        gradients on is taken for the training loader."""
        overrides = self._settings.overrides
        if not overrides or self._targets or self._settings.sites or not sys.modules["torch"].is_grad_enabled():
            return
        entry = self._made.get(id(loader))
        arguments = {name: getattr(loader, name) for name in SETTABLE if hasattr(loader, name)}
        creation = entry[1] if entry is not None else Creation()
        self._targets += 1
        changed = _changed(arguments, {name: value for name, value in overrides.items() if name != "batch_size"})
        if changed["num_workers"] and changed["prefetch_factor"] is None:
            changed["prefetch_factor"] = _PREFETCH
        for name, value in changed.items():
            if value != arguments[name]:
                creation.overridden[name] = [_shown(arguments[name]), value]
                if name == "persistent_workers":  # the loader refuses to have it set
                    vars(loader)[name] = value
                else:
                    setattr(loader, name, value)
        if "batch_size" in overrides:
            report(self._settings.directory, "set", "the batch size of a loader that does not shuffle cannot be set")

    def _overrides(self, arguments: dict[str, Any], creation: Creation) -> dict[str, Any] | None:
        sites = [f"{file}:{line}" for file, line, _ in creation.site]
        wanted = any(site in self._settings.sites for site in sites) if self._settings.sites else _shuffles(arguments)
        if not wanted:
            return None
        self._targets += 1
        overrides = dict(self._settings.overrides)
        own = arguments.get("batch_sampler") is not None or arguments.get("batch_size") is None
        if own and overrides.pop("batch_size", None) is not None and not creation.made_by:
            report(self._settings.directory, "set", "a loader with a batch sampler of its own has no batch size to set")
        changed = _changed(arguments, overrides)
        for name, value in changed.items():
            if value is not arguments[name] and value != arguments[name]:
                creation.overridden[name] = [_shown(arguments[name]), value]
        return changed

    def _over(self, dataset: Any) -> Loader | None:
        """The last loader that was made over the same dataset object."""
        for reference, _ in reversed(list(self._made.values())):
            loader = reference()
            if loader is not None and vars(loader).get("dataset") is dataset:
                return self.of(loader)
        return None


def _changed(arguments: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The arguments with the overrides, as far as they fit together: without workers there is nothing to prefetch."""
    changed = {**arguments, **{name: value for name, value in overrides.items() if name in arguments}}
    if not changed["num_workers"]:
        changed.update(prefetch_factor=None, persistent_workers=False)
        if "multiprocessing_context" in changed:
            changed["multiprocessing_context"] = None
        if "timeout" in changed:
            changed["timeout"] = 0
    return changed


def _shuffles(arguments: dict[str, Any]) -> bool:
    if arguments.get("shuffle"):
        return True
    sampler = arguments.get("sampler") or getattr(arguments.get("batch_sampler"), "sampler", None)
    own = getattr(sampler, "shuffle", None)
    return own if isinstance(own, bool) else "Random" in type(sampler).__name__


def _place() -> tuple[list[list[Any]], list[str], tuple[str, ...]]:
    """The user's frames that led here, innermost first; the packages between them and the loader, and the functions
    of theirs that were called."""
    frames: list[list[Any]] = []
    packages: list[str] = []
    through: list[str] = []
    frame: Any = sys._getframe(2)
    last = frame
    while frame is not None and len(frames) < _MOST_FRAMES:
        code = frame.f_code
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _OWN:
            last = frame
            if not is_library(code.co_filename):
                if not frames or code.co_filename != "<string>":  # how multiprocessing starts a process
                    frames.append([code.co_filename, frame.f_lineno, code.co_name])
            elif not frames:
                through.append(code.co_name)
                if package not in (*_PLUMBING, *packages):
                    packages.append(package)
        frame = frame.f_back
    if not frames:  # an installed program: its outermost frame
        frames.append([last.f_code.co_filename, last.f_lineno, last.f_code.co_name])
    return frames, packages, tuple(through)


def _facts(loader: Any) -> dict[str, Any]:
    kind = type(loader)
    dataset = loader.dataset
    module = sys.modules.get(type(dataset).__module__)
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "arguments": {
            name: _shown(getattr(loader, name)) for name in (*SETTABLE, "drop_last") if hasattr(loader, name)
        },
        "batch_size": _batch_size(loader),
        "sampler": type(getattr(loader, "sampler", None)).__name__,
        "batch_sampler": type(getattr(loader, "batch_sampler", None)).__name__,
        "dataset": {
            "class": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
            "file": getattr(module, "__file__", None),
            "items": _items(loader),
            "iterable": getattr(loader, "_dataset_kind", 0) == 1,
            **_stream(loader),
        },
    }


def _stream(loader: Any) -> dict[str, Any]:
    """The modules and files of a stream, of what it holds and of what begins a worker, and in how many parts the stream
    can be shared out among workers, where it says so."""
    if not _is_stream(loader.dataset):
        return {"streams": [], "shards": None}
    found = _held(loader.dataset, getattr(loader, "worker_init_fn", None))
    modules = dict.fromkeys(_module(each) for each in found)
    counts = (_shards(each) for each in found if _is_stream(each))
    return {
        "streams": [[module, getattr(sys.modules.get(module), "__file__", None)] for module in modules],
        "shards": next((count for count in counts if count is not None), None),
    }


def _is_stream(value: Any) -> bool:
    return any(kind.__name__ == "IterableDataset" and kind.__module__ == _TORCH for kind in type(value).__mro__)


def _held(*values: Any) -> list[Any]:
    """The values and the objects and functions that they hold, as far as attributes show them."""
    found: list[Any] = []
    seen: set[int] = set()
    waiting = [(value, 0) for value in values]
    for value, depth in waiting:  # which grows
        if type(value).__module__ == "functools":
            value = getattr(value, "func", value)
        if id(value) in seen or depth > _DEEPEST or len(found) == _MOST:
            continue
        seen.add(id(value))
        if isinstance(value, (list, tuple, dict)):
            held = list(value.values() if isinstance(value, dict) else value[:_MOST_OF_A_LIST])
        elif _is_stream(value) or _module(value).partition(".")[0] not in _PLAIN:
            found.append(value)
            held = list(getattr(value, "__dict__", {}).values())
        else:
            continue
        waiting += [(each, depth + 1) for each in held[:_MOST_OF_A_LIST]]
    return found


def _module(value: Any) -> str:
    """Where a function, or the class of an object, comes from."""
    own = getattr(value, "__module__", None) if callable(value) and hasattr(value, "__code__") else None
    return str(own or type(value).__module__)


def _shards(stream: Any) -> int | None:
    """As Hugging Face's streams say it; of webdataset's, the length of the list that they begin with."""
    try:
        for name in ("num_shards", "n_shards"):
            count = getattr(stream, name, None)
            if isinstance(count, int):
                return count
        first = next(iter(getattr(stream, "pipeline", None) or ()), None)
        return len(getattr(first, "urls", ())) if type(first).__name__ == "SimpleShardList" else None
    except Exception as error:  # a stream may answer in any way
        if is_of_signal(error):
            raise
        return None


def _batch_size(loader: Any) -> int | None:
    """The loader's own, or that of its batch sampler."""
    size = loader.batch_size
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def _items(loader: Any) -> int | None:
    """How many items there are, where the sampler has asked for that itself."""
    if type(getattr(loader, "sampler", None)).__name__ not in ("SequentialSampler", "RandomSampler"):
        return None
    try:
        return len(loader.dataset)
    except Exception as error:  # a dataset may know no length, and say so in any way
        if is_of_signal(error):
            raise
        return None


def _shown(value: Any) -> Any:
    """A value as JSON: plain ones as they are, others as their class or name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    method = getattr(value, "_name", None)
    return method if isinstance(method, str) else str(name)
