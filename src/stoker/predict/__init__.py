"""What would happen: memory at any batch, time at any setting. `stoker.predict(probes, setting)` calls this package."""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package named like the function that people call: once a part of it is imported, `stoker.predict` is it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from stoker.predict.forecast import predict

        return predict(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
