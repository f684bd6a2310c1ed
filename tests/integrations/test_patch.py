"""A function that is changed in place: what it does, what its errors look like, and when it is left alone."""

import linecache
import pickle
import traceback
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest

from stoker.integrations.bootstrap import patch
from stoker.integrations.bootstrap.patch import NotPatched, Patch
from stoker.integrations.bootstrap.stages import Site, Stages


class Hook:
    """Writes down its calls."""

    def __init__(self) -> None:
        self.on = True
        self.calls: list[Any] = []

    def enter(self, *arguments: Any) -> Any:
        self.calls.append(("enter", *arguments))
        return len(self.calls)

    def mark(self, token: int) -> None:
        self.calls.append("mark")

    def done(self, token: int, value: Any) -> None:
        self.calls.append(("done", value))

    def leave(self, *token: int) -> None:
        self.calls.append("leave")

    def ticks(self, token: Any, things: Any) -> Iterator[Any]:
        for each in things:
            self.calls.append(("tick", each))
            yield each

    def made(self, thing: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(arguments)
        return {**arguments, "two": 20}


class Base:
    def name(self) -> str:
        return "base"


class Example(Base):
    """Functions of every kind that may be changed."""

    def __init__(self, one: int, two: int = 2, *, three: int = 3) -> None:
        """With a docstring."""
        self.__hidden = (one, two, three)

    def hidden(self) -> tuple[int, ...]:
        return self.__hidden

    def name(self) -> str:
        return super().name() + "d"

    def squares(self, numbers: list[int]) -> list[int]:
        if not numbers:
            return []
        return [number * number for number in numbers]

    def each(self, numbers: list[int]) -> int:
        total = 0
        for number in numbers:
            total += number
        return total

    @staticmethod
    def shout(text: str, *, mark: str = "!") -> str:
        return str(text.upper() + mark)


def fail(value: int) -> float:
    things = [value]
    return sum(1 / each for each in things)


def closure(factor: int) -> Callable[[int], int]:
    def times(number: int) -> int:
        return number * factor

    return times


def _patched(function: Any, edit: patch.Edit, **options: Any) -> Patch:
    change = Patch(function, edit, **options)
    assert change.apply()
    return change


def test_a_call_is_seen_with_its_value() -> None:
    hook = Hook()
    change = _patched(Example.squares, patch.span(hook, "self, numbers", value=True, ticked="numbers"))
    example = Example(1)
    try:
        assert example.squares([2, 3]) == [4, 9]
        assert hook.calls == [
            ("enter", example, [2, 3]),
            "mark",
            ("tick", 2),
            ("tick", 3),
            ("done", [4, 9]),
            "leave",
        ]
        hook.calls.clear()
        hook.on = False
        assert example.squares([2]) == [4]
        assert not hook.calls
    finally:
        change.undo()
    hook.on = True
    assert example.squares([5]) == [25]
    assert not hook.calls


@pytest.mark.parametrize("constants", [True, False])
def test_a_change_can_be_made_and_taken_back_again_and_again(constants: bool) -> None:
    hook, before = Hook(), Example.each.__code__
    names = set(Example.each.__globals__)
    change = _patched(Example.each, patch.span(hook), constants=constants)
    assert not change.apply()
    for _ in range(2):
        assert Example(1).each([1, 2]) == 3
        change.undo(thoroughly=True)
        assert Example.each.__code__ is before
        assert set(Example.each.__globals__) == names
        assert Example(1).each([1, 2]) == 3
        hook.calls.clear()
        change = _patched(Example.each, patch.span(hook), constants=constants)
        Example(1).each([])
        assert hook.calls == [("enter",), "leave"]
    change.undo(thoroughly=True)


def test_private_names_super_and_closures_work() -> None:
    hook, times = Hook(), closure(3)
    changes = [_patched(each, patch.span(hook)) for each in (Example.hidden, Example.name, times)]
    try:
        assert (Example(1).hidden(), Example(1).name(), times(5)) == ((1, 2, 3), "based", 15)
        assert hook.calls.count("leave") == 3
        assert Example.name.__qualname__ == Example.name.__code__.co_qualname == "Example.name"
    finally:
        for change in changes:
            change.undo(thoroughly=True)


def test_constructor_arguments_are_shown_and_set() -> None:
    hook = Hook()
    change = _patched(Example.__init__, patch.rebound(hook, ("two",)))
    try:
        assert Example(1, three=30).hidden() == (1, 20, 30)
        assert hook.calls == [{"one": 1, "two": 2, "three": 30}]
        hook.on = False
        assert Example(1).hidden() == (1, 2, 3)
    finally:
        change.undo(thoroughly=True)


@pytest.mark.parametrize("constants", [True, False])
@pytest.mark.parametrize("edit", [patch.span, lambda hook: patch.calls(lambda node: hook)])
def test_errors_print_as_before(edit: Any, constants: bool) -> None:
    before = _printed()
    change = _patched(fail, edit(Hook()), constants=constants)
    try:
        assert _printed() == before
        assert "1 / each" in before
    finally:
        change.undo(thoroughly=True)


def _printed() -> str:
    try:
        fail(0)
    except ZeroDivisionError:
        return traceback.format_exc()
    raise AssertionError("it does not fail")


def test_calls_are_timed_without_their_arguments() -> None:
    outer, inner = Hook(), Hook()
    hooks = {"str": outer, "text.upper": inner}
    change = _patched(Example.shout, patch.calls(lambda node: hooks.get(patch.written(node.func))))
    order: list[str] = []
    setattr(outer, "enter", lambda: order.append("outer begins"))  # noqa: B010 - mypy lets no method be assigned
    setattr(inner, "leave", lambda: order.append("inner ends"))  # noqa: B010
    try:
        assert Example.shout("hi", mark="?") == "HI?"
        assert order == ["inner ends", "outer begins"]
    finally:
        change.undo(thoroughly=True)


def test_what_a_pickle_has_of_a_hook_needs_no_stoker() -> None:
    copy = pickle.loads(pickle.dumps(Site(Stages(), "f", None)))
    assert type(copy).__module__ == "types"
    assert copy.on is False


def _made(source: str, name: str, file: str) -> FunctionType:
    """A function whose source is in a file that exists only here."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict[str, Any] = {}
    exec(compile(source, file, "exec"), space)
    function = space[name]
    assert isinstance(function, FunctionType)
    return function


def test_an_edited_source_is_left_alone() -> None:
    function = _made("def f(x):\n    return x + 1\n", "f", "<edited>")
    linecache.cache["<edited>"] = (1, None, ["def f(x):\n", "    return x + 2\n"], "<edited>")
    with pytest.raises(NotPatched, match="is not what runs"):
        Patch(function, patch.span(Hook()))
    assert function(1) == 2


@pytest.mark.parametrize(
    "source",
    [
        "async def f():\n    return 1\n",
        "def f():\n    x = 1\n    return locals()\n",
        "f = lambda: 1\n",
        "def f():\n    return '\\d'\n",
    ],
)
@pytest.mark.filterwarnings("ignore:invalid escape")
def test_odd_functions_are_left_alone(source: str) -> None:
    function = _made(source, "f", "<odd>")
    with pytest.raises(NotPatched):
        Patch(function, patch.span(Hook()))


def test_a_function_without_source_is_left_alone() -> None:
    space: dict[str, Any] = {}
    exec("def f(): return 1", space)
    with pytest.raises(NotPatched):
        Patch(space["f"], patch.span(Hook()))


def test_another_tools_change_is_not_taken_back() -> None:
    function = _made("def f(x):\n    return x + 1\n", "f", "<other>")
    change = _patched(function, patch.span(Hook()))
    other = (lambda x: x + 5).__code__
    function.__code__ = other
    change.undo()
    assert function.__code__ is other


def test_a_decorated_function_keeps_its_lines() -> None:
    source = "keep = lambda f: f\n\n@keep\n@keep\ndef f(x):\n    return 1 / x\n"
    function, hook = _made(source, "f", "<decorated>"), Hook()
    _patched(function, patch.span(hook))
    with pytest.raises(ZeroDivisionError) as caught:
        function(0)
    assert [entry.lineno for entry in caught.traceback[1:]] == [5]
    assert hook.calls == [("enter",), "leave"]
