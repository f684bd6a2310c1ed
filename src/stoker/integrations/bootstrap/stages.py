"""What the time of an item is spent on: read, decode, transform. Sums for the batch that this process loads now.

Stages nest. A stage's time is its own: what an inner one takes is taken off the outer one.
"""

import sys
from collections.abc import Iterator
from threading import get_ident
from time import perf_counter_ns as clock
from typing import Any

from .journal import is_ours

_INSIDE = {
    "call": frozenset(("call", "transform", "operation", "decode", "read")),
    "operation": frozenset(("decode", "read")),
    "transform": frozenset(("transform",)),
    "decode": frozenset(("read",)),
    "read": frozenset(),
}
"""Which stages count inside which. What a transform decodes is part of the transform; a single operation, such as
resizing, is a stage only outside a transform, and may have to decode a lazily opened image first."""


class Stages:
    """Sums the nanoseconds of each stage while `on`, for the thread that loads."""

    def __init__(self) -> None:
        self.on = False
        self.sites: list[Site] = []
        self.entered = 0
        self.total = 0
        self.sums: dict[str, int] = {}
        self._thread = 0
        self._stack: list[Any] = []

    def begin(self) -> None:
        """A batch begins."""
        self._thread = get_ident()
        self._stack, self.sums, self.total, self.entered = [], {}, 0, 0
        self.on = True
        for site in self.sites:
            site.begin()

    def end(self) -> None:
        """Its items are loaded, or could not be."""
        self.on = False
        for site in self.sites:
            site.on = False

    def enter(self, name: str, kind: str = "") -> int | None:
        """A stage begins; None where it counts as part of the one around it."""
        if get_ident() != self._thread:
            return None
        kind = kind or name.partition(".")[0]
        stack = self._stack
        if stack and kind not in _INSIDE[stack[-1][1]]:
            return None
        stack.append([name, kind, 0, 0])
        self.entered += 1
        stack[-1][2] = clock()
        return len(stack)

    def leave(self, token: int) -> int:
        """It ends, and with it those inside that were left without a word; returns its whole duration."""
        now = clock()
        stack = self._stack
        if len(stack) < token:
            return 0
        left = stack[token:]
        del stack[token:]
        name, _, began, inner = stack.pop()
        inner += sum(each[3] for each in left)
        whole: int = now - began
        self.sums[name] = self.sums.get(name, 0) + whole - inner
        if stack:
            stack[-1][3] += whole
        else:
            self.total += whole
        return whole

    def ticks(self, _: Any, members: Any) -> Iterator[Any]:
        """The members of a chain of transforms, each timed until the next one is asked for."""
        for member in members:
            token = self.enter(f"transform.{name_of(member)}") if self.on else None
            try:
                yield member
            finally:
                if token:
                    self.leave(token)


class Site:
    """One call in a dataset's own code. What is called is looked up when it is first called."""

    _LOOK, _SHORT_NS = 64, 3_000

    def __init__(self, stages: Stages, text: str, classify: Any) -> None:
        self.on = False
        self._stages, self._text, self._classify = stages, text, classify
        self._name = self._kind = ""
        self._tokens: list[int | None] = []
        self._calls = self._spent = 0

    def begin(self) -> None:
        """A batch begins. A call that raised left its token behind."""
        self._tokens.clear()
        self.on = True

    def enter(self) -> None:
        if not self._name:
            try:
                self._name = self._classify(self._text, sys._getframe(1))
            except Exception as error:
                if not is_ours(error):
                    raise
                self._name = f"item.{self._text}"
            kind = self._name.partition(".")[0]
            self._kind = "call" if kind == "item" else kind
        self._tokens.append(self._stages.enter(self._name, self._kind))

    def leave(self) -> None:
        token = self._tokens.pop() if self._tokens else None
        if token is None:
            return
        self._spent += self._stages.leave(token)
        self._calls += 1
        if self._calls == self._LOOK and self._spent < self._LOOK * self._SHORT_NS:
            self.on = False  # too short for its time to be worth what it costs to take it
            self._stages.sites.remove(self)

    def __reduce__(self) -> Any:
        """What a pickled function of the user's has of us: something that is never on, and needs no Stoker."""
        from types import SimpleNamespace

        return SimpleNamespace, (), {"on": False}


def name_of(thing: Any) -> str:
    """A transform's name."""
    name = getattr(thing, "__name__", None)
    return (name if isinstance(name, str) else type(thing).__name__).replace("<lambda>", "lambda")
