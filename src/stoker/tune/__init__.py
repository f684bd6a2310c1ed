"""What to do: the largest batch, the best setting, the verdict. `stoker.tune(workload)` calls this package itself."""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package named like the function that people call: as soon as a part of it is imported, `stoker.tune` is it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from stoker.tune.plan import tune

        return tune(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
