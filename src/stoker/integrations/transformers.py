"""A callback for the Trainer of Hugging Face that observes its loaders: `Trainer(callbacks=[watch_callback()])`."""

from typing import Any

from stoker.integrations.logs import RunLog
from stoker.integrations.watch import Watch
from stoker.packages import optional


class _Callback:
    """What the Trainer calls. The class that it sees inherits its own `TrainerCallback` too."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._watch = Watch(batches=batches)

    @property
    def log(self) -> RunLog:
        """What was seen, once `train` has ended."""
        return self._watch.log

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watch.start()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watch.stop()

    def __reduce__(self) -> Any:
        return watch_callback, (self._batches,)


def watch_callback(batches: int = 200) -> Any:
    """A callback for `transformers.Trainer`; its `log` is what was seen. Raises `MissingPackage` where transformers is
    not installed."""
    base = optional("transformers.trainer_callback", extra="hf").TrainerCallback
    return type("WatchCallback", (_Callback, base), {})(batches)
