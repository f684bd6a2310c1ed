"""The one door for optional packages: a missing one says which extra brings it."""

import importlib
from typing import Any

from stoker.errors import MissingPackage


def optional(module: str, *, extra: str) -> Any:
    """Import a module that an extra brings, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        name = module.partition(".")[0]
        raise MissingPackage(f"{name} is not installed; run: pip install 'stoker[{extra}]'") from None
