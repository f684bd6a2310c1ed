"""A callback for the Trainer of Hugging Face that observes its loaders: `Trainer(callbacks=[watch_callback()])`."""

from typing import Any

from stoker.integrations.watch import Watch
from stoker.packages import optional


class _Callback:
    """What the Trainer calls. The class that it sees inherits its own `TrainerCallback` too."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self.watched = Watch(batches=batches)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.watched.start()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.watched.stop()

    def __reduce__(self) -> Any:
        return watch_callback, (self._batches,)


def watch_callback(batches: int = 200) -> Any:
    """A callback for `transformers.Trainer`; its `watched.log` is what was seen. Raises `MissingPackage` where
    transformers is not installed."""
    base = optional("transformers.trainer_callback", extra="hf").TrainerCallback
    return type("WatchCallback", (_Callback, base), {})(batches)
