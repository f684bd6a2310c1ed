"""Whether the models that a study names exist and suit their data: found out before it runs, in a child process."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stoker.errors import StokerError
from stoker.measure.session import trial_server
from stoker.process import child
from stoker.records import Record, Task
from stoker.workload.spec import check_named

Named = tuple[str, str | None, Any]
"""A model's name, its kind of data and its mode."""


class Misfit(Record, frozen=True):
    """A model that cannot be run as asked. Both are None where there is none."""

    model: str | None = None
    sentence: str | None = None


def first_misfit(tasks: Iterable[Task]) -> Misfit:
    """The first model of these tasks that is unknown, or does not suit its data or its mode.

    To know models takes torch, which a driver need not have: the server from which its trials are forked has it.
    """
    asked: dict[Named, None] = {}
    for task in tasks:
        if task.workload is not None and not task.workload.from_function:
            asked[task.workload.spec, task.workload.data, task.mode] = None
    if not asked:
        return Misfit()
    return child.value(child.run(_first_misfit, (tuple(asked),), kind=Misfit, server=trial_server()))


def _first_misfit(asked: Sequence[Named], emit: Callable[[Any], None]) -> Misfit:
    for name, data, mode in asked:
        try:
            check_named(name, data=data, mode=mode)
        except StokerError as error:
            return Misfit(model=name, sentence=str(error))
    return Misfit()
