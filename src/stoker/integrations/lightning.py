"""A callback for Lightning that observes the loaders of a `fit`: `Trainer(callbacks=[watch_callback()])`."""

import importlib
import sys
from types import ModuleType
from typing import Any

from stoker.integrations.watch import Watch
from stoker.packages import optional

_NAMESPACES = ("lightning.pytorch", "pytorch_lightning")


class _Callback:
    """What the trainer calls. The class that it sees inherits the namespaces' own `Callback` too."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self.watched = Watch(batches=batches)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self.watched.start()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.watched.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.watched.stop()

    def __reduce__(self) -> Any:
        return watch_callback, (self._batches,)


def watch_callback(batches: int = 200) -> Any:
    """A callback for the trainer of either namespace, `lightning` or `pytorch_lightning`; its `watched.log` is what was
    seen. Raises `MissingPackage` where neither is installed."""
    bases = [module.Callback for module in _namespaces()]
    return type("WatchCallback", (_Callback, *bases), {})(batches)


def _namespaces() -> list[ModuleType]:
    """Those that are imported, or else the one that can be."""
    imported = [sys.modules[name] for name in _NAMESPACES if name in sys.modules]
    if imported:
        return imported
    for name in _NAMESPACES:
        try:
            return [importlib.import_module(name)]
        except ImportError:
            continue
    return [optional("lightning.pytorch", extra="lightning")]
