"""Weights files of named models, made once with random values: a study reads them as a search reads downloaded ones."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from stoker.atomic import CACHE_REMEDY, build_folder, data_root
from stoker.errors import MachineError
from stoker.machine.pagecache import evict, warm
from stoker.measure.session import trial_server
from stoker.process import child

_VERSION = 1  # increase it when the files change, so that an old one is not used as a new one
_FILE = "weights.pt"


def weights_file(model: str, cache: str) -> Path:
    """The weights file of a model, built if missing, and then in the page cache (`warm`) or not (`cold`).

    Raises InputError for a model that does not exist, MachineError if the disk is too full or the file cannot leave the
    cache.
    """
    final = data_root() / f"weights-v{_VERSION}-{re.sub(r'[^A-Za-z0-9_.-]', '-', model)}"
    if not (final / _FILE).is_file():
        needs_bytes = _called(_size, model)
        build_folder(final, partial(_fill, model), needs_bytes=needs_bytes, remedy=CACHE_REMEDY)
    path = final / _FILE
    if cache == "warm":
        warm([path])
    elif evict([path]) < 0.5:
        raise MachineError(
            f"{path} does not leave the page cache, so that reading it cold cannot be measured; "
            "put the cache on a disk with STOKER_CACHE=FOLDER"
        )
    return path


def _fill(model: str, folder: Path) -> None:
    _called(_write, model, str(folder / _FILE))


def _called(function: Callable[..., int], *arguments: Any) -> int:
    """The function's answer, from a process of its own: this one need not have torch."""
    return child.value(child.run(function, arguments, kind=int, server=trial_server()))


def _size(model: str, emit: Callable[[Any], None]) -> int:
    """The bytes of the model's weights. No memory is taken for them."""
    import torch

    from stoker.workload import models

    with torch.device("meta"):
        return sum(each.numel() * each.element_size() for each in models.build(model).state_dict().values())


def _write(model: str, path: str, emit: Callable[[Any], None]) -> int:
    import torch

    from stoker.workload import models

    torch.manual_seed(0)
    torch.save(models.build(model).state_dict(), path)
    return Path(path).stat().st_size
