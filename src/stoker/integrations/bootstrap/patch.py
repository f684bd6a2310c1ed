"""Changes a Python function in place: its own source, with a few expressions added, compiled again.

A wrapper would show in every traceback that passes through it, and a function that was imported by name would miss it.
The changed code keeps the file name, the line and the column of each expression, so a traceback prints as before, and
taking the change back is one assignment. A function is left alone unless its source compiles to exactly the code that
it has: an edited file, a decorator or another tool's patch rules it out.
"""

import __future__

import ast
import gc
import inspect
import linecache
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .journal import is_ours

Edit = Callable[[ast.FunctionDef, "Names"], bool]
"""Changes a function's tree; returns whether it found what it looks for."""

_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag

_ODD_ESCAPE = re.compile(r"\\[^\n\r\\'\"abfnrtv0-7xNuU]")
"""Compiling such a string again would print its warning a second time."""
_LOOKS_AROUND = frozenset(("locals", "exec", "eval", "vars", "dir"))
"""Functions that use these could see the variables that a change adds."""

TOKEN, VALUE = "_stoker_token", "_stoker_value"


@contextmanager
def uncollected() -> Iterator[None]:
    """Patching makes many small objects. They must not start the garbage collector: what it finds in a forked worker
    may be an iterator of the parent's, whose end then prints an error."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class NotPatched(Exception):
    """The function is as it was; says why."""


class Names:
    """How the new code reaches our objects.

    A library's function finds them among its module's globals, where `torch.compile` can follow. A function of the
    user's finds them among its constants: nothing is added to the user's module.
    """

    def __init__(self, function: FunctionType, *, constants: bool) -> None:
        self._globals, self._constants = function.__globals__, constants
        self._objects: list[tuple[str, Any]] = []

    def of(self, thing: Any) -> ast.expr:
        """An expression for the object."""
        name = f"_stoker_{id(thing):x}"
        if all(each is not thing for _, each in self._objects):
            self._objects.append((name, thing))
        if self._constants:
            return ast.Constant(f"\0{name}")
        return ast.Name(name, ast.Load())

    def bind(self, code: CodeType) -> CodeType:
        """The compiled code with our objects within its reach."""
        if not self._constants:
            self._globals.update(self._objects)
            return code
        return _with_constants(code, {f"\0{name}": thing for name, thing in self._objects})

    def forget(self) -> None:
        """Take our objects out of the library's module. Code that still runs must not need them."""
        if not self._constants:
            for name, _ in self._objects:
                self._globals.pop(name, None)


class Patch:
    """A change of one function, made by `apply`, taken back by `undo`, as often as need be."""

    def __init__(self, function: FunctionType, edit: Edit, *, constants: bool = False) -> None:
        """Prepare the change; raises `NotPatched` where it is not safe."""
        self.function, self._before = function, function.__code__
        self._names = Names(function, constants=constants)
        self._after = _changed(function, edit, self._names)

    def apply(self) -> bool:
        """Change the function, unless that is done already or another has changed it meanwhile."""
        if self.function.__code__ is not self._before:
            return False
        self.function.__code__ = self._after
        return True

    def undo(self, *, thoroughly: bool = False) -> None:
        """Give the function its code back. Calls that are under way end in the changed one, so only a caller that knows
        of none may ask for `thoroughly`, which also removes the names that were added to its module."""
        if self.function.__code__ is self._after:
            self.function.__code__ = self._before
        if thoroughly:
            self._names.forget()


def _changed(function: FunctionType, edit: Edit, names: Names) -> CodeType:
    code = function.__code__
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise NotPatched(f"{code.co_name} is asynchronous")
    if _LOOKS_AROUND.intersection(code.co_names):
        raise NotPatched(f"{code.co_name} looks at its own variables")
    try:
        tree, definition = _true_tree(function)
        if not edit(definition, names):
            raise NotPatched(f"{code.co_name} is not written as expected")
        ast.fix_missing_locations(tree)
        changed = _compiled(tree, code)
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError, LookupError) as error:
        if not is_ours(error):
            raise
        raise NotPatched(f"{code.co_name}: {error}") from None
    if changed.co_freevars != code.co_freevars:
        raise NotPatched(f"{code.co_name} has other free variables")
    changed = names.bind(changed)
    return changed.replace(co_qualname=code.co_qualname) if hasattr(code, "co_qualname") else changed


def _true_tree(function: FunctionType) -> tuple[ast.Module, ast.FunctionDef]:
    """The function's tree, if it compiles to what the function has. The compiler treats names that the module imports
    in a way of their own: usually those that are modules, otherwise the module's source must say."""
    code = function.__code__
    for imported in (_modules, _imports):
        tree, definition = _tree(function)
        names = imported(function)
        used = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name) and node.id in names}
        if used:
            tree.body.append(ast.parse("import " + ", ".join(sorted(used))).body[0])
        if _alike(_compiled(tree, code), code):
            return tree, definition
    raise NotPatched(f"the source of {code.co_name} is not what runs")


def _modules(function: FunctionType) -> set[str]:
    return {name for name, value in function.__globals__.items() if isinstance(value, ModuleType)}


def _imports(function: FunctionType) -> set[str]:
    names: set[str] = set()
    rest: list[Any] = [ast.parse("".join(linecache.getlines(function.__code__.co_filename)))]
    for node in rest:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(each.asname or each.name.partition(".")[0] for each in node.names)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
            rest += ast.iter_child_nodes(node)
    return names


def _tree(function: FunctionType) -> tuple[ast.Module, ast.FunctionDef]:
    """The function's definition, inside stand-ins for the class and the function around it: the compiler needs them
    for private names, `super()` and free variables."""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines, first = inspect.getsourcelines(code)
    text = "".join(lines)
    if _ODD_ESCAPE.search(text):
        raise NotPatched(f"{code.co_name} has an odd escape")
    indented = text[:1].isspace()
    parsed = ast.parse("if 1:\n" + text if indented else text)
    ast.increment_lineno(parsed, first - (2 if indented else 1))
    definition = parsed.body[0].body[0] if indented else parsed.body[0]  # type: ignore[attr-defined]
    if not isinstance(definition, ast.FunctionDef) or definition.name != code.co_name:
        raise NotPatched(f"{code.co_name} is not a plain function")
    outer: ast.stmt = definition
    place = function.__qualname__.split(".")
    if len(place) > 1 and place[-2] != "<locals>":
        outer = ast.parse(f"class {place[-2]}: pass").body[0]
        outer.body = [definition]  # type: ignore[attr-defined]
    free = [name for name in code.co_freevars if name != "__class__"]
    if free:
        inside, outer = outer, ast.parse(f"def around({', '.join(free)}): pass").body[0]
        outer.body = [inside]  # type: ignore[attr-defined]
    tree = ast.Module([outer], [])
    ast.fix_missing_locations(tree)
    return tree, definition


def _compiled(tree: ast.Module, wanted: CodeType) -> CodeType:
    flags = wanted.co_flags & _FUTURES
    return _find(compile(tree, wanted.co_filename, "exec", flags, dont_inherit=True), wanted)


def _find(code: CodeType, wanted: CodeType) -> CodeType:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_name == wanted.co_name and inner.co_firstlineno == wanted.co_firstlineno:
                return inner
            try:
                return _find(inner, wanted)
            except LookupError:
                continue
    raise LookupError(f"no code of that name at line {wanted.co_firstlineno}")


_COMPARED = (
    "co_code co_names co_varnames co_freevars co_cellvars co_firstlineno co_linetable co_exceptiontable co_lnotab"
)


def _alike(one: CodeType, other: CodeType) -> bool:
    """Whether two pieces of code do the same at the same lines."""
    names = [name for name in _COMPARED.split() if name != "co_lnotab" or not hasattr(one, "co_linetable")]
    if any(getattr(one, name, None) != getattr(other, name, None) for name in names):
        return False
    return len(one.co_consts) == len(other.co_consts) and all(map(_alike_constants, one.co_consts, other.co_consts))


def _alike_constants(one: Any, other: Any) -> bool:
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return _alike(one, other)
    return type(one) is type(other) and one == other


def _with_constants(code: CodeType, things: "dict[str, Any]") -> CodeType:
    def place(constant: Any) -> Any:
        if isinstance(constant, CodeType):
            return _with_constants(constant, things)
        return things.get(constant, constant) if isinstance(constant, str) else constant

    return code.replace(co_consts=tuple(map(place, code.co_consts)))


# ---------------------------------------------------------------- edits


def span(
    hook: Any,
    arguments: str = "",
    *,
    value: bool = False,
    compilable: bool = False,
    ticked: str | None = None,
) -> Edit:
    """Time a call: `token = hook.on and hook.enter(arguments)` first, `hook.leave(token)` last, whatever happens.

    With `value`, what the function is about to return goes to `hook.done(token, value)`, right after
    `hook.mark(token)` and the expression itself. The loop over the expression `ticked` runs over
    `hook.ticks(token, expression)` instead. With `compilable`, `torch.compile` leaves all that out.
    """

    def edit(definition: ast.FunctionDef, names: Names) -> bool:
        body = definition.body
        head = body[:1] if ast.get_docstring(definition, clean=False) is not None else []
        rest = body[len(head) :]
        if not rest:
            return False
        loops = _tick_loops(rest, ticked, hook, names) if ticked else 1
        if value:
            rest = _Returns(hook, names).all(rest)
        asked = f"__hook__.on{' and not torch.compiler.is_compiling()' if compilable else ''}"
        start = _statement(f"{TOKEN} = {asked} and __hook__.enter({arguments})", hook, names, rest[0])
        end = _statement(f"{TOKEN} and __hook__.leave({TOKEN})", hook, names, rest[0])
        guarded = ast.Try(rest, [], [], [end])
        definition.body = [*head, start, ast.copy_location(guarded, rest[0])]
        return bool(loops)

    return edit


def ticks(hook: Any, iterated: str) -> Edit:
    """Let each loop over the expression run over `hook.ticks(True, expression)` while the hook is on."""

    def edit(definition: ast.FunctionDef, names: Names) -> bool:
        return bool(_tick_loops(definition.body, iterated, hook, names, token="True"))

    return edit


def rebound(hook: Any, settable: tuple[str, ...]) -> Edit:
    """Show a constructor's arguments to `hook.made(self, arguments)`, which may return others for those in
    `settable`."""

    def edit(definition: ast.FunctionDef, names: Names) -> bool:
        every = [each.arg for each in (*definition.args.args, *definition.args.kwonlyargs)]
        shown = ", ".join(f"{name!r}: {name}" for name in every[1:])
        body = definition.body
        head = 1 if ast.get_docstring(definition, clean=False) is not None else 0
        lines = [f"{TOKEN} = __hook__.on and __hook__.made({every[0]}, {{{shown}}})"]
        lines += [f"if {TOKEN}: {name} = {TOKEN}[{name!r}]" for name in every if name in settable]
        body[head:head] = [_statement(line, hook, names, body[head]) for line in lines]
        return True

    return edit


def calls(chosen: Callable[[ast.Call], Any]) -> Edit:
    """Put `hook.on and hook.enter()` before and `hook.on and hook.leave()` after each call for which `chosen` returns
    a hook: before it, but after its arguments were evaluated. Calls in functions, comprehensions and generators
    inside are left out."""

    def edit(definition: ast.FunctionDef, names: Names) -> bool:
        changer = _Calls(chosen, names)
        definition.body = [changer.visit(each) for each in definition.body]
        return changer.changed > 0

    return edit


def called_loops(hook: Any) -> Edit:
    """Like `ticks`, for each loop over an attribute of `self` whose variable is called in the loop: a chain of
    transforms."""

    def edit(definition: ast.FunctionDef, names: Names) -> bool:
        found = 0
        for node in list(ast.walk(definition)):
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and written(node.iter)[:5] == "self.":
                called = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
                if any(isinstance(each, ast.Name) and each.id == node.target.id for each in called):
                    found += _tick_loops([node], written(node.iter), hook, names, token="True")
        return found > 0

    return edit


def written(node: ast.expr) -> str:
    """An expression's own text."""
    return ast.unparse(node)


def both(*edits: Edit) -> Edit:
    """One edit after the other; it is enough when one finds its place."""

    def edit(definition: ast.FunctionDef, names: Names) -> bool:
        found = [each(definition, names) for each in edits]
        return any(found)

    return edit


class _Scope(ast.NodeTransformer):
    """Stays out of the scopes inside a function."""

    def _leave(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _leave  # noqa: N815
    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _leave  # noqa: N815


class _Returns(_Scope):
    """`return EXPRESSION` becomes: mark, evaluate, done, return."""

    def __init__(self, hook: Any, names: Names) -> None:
        self._hook, self._names = hook, names

    def all(self, body: list[ast.stmt]) -> list[ast.stmt]:
        changed: list[ast.stmt] = []
        for each in body:
            after = self.visit(each)
            changed += after if isinstance(after, list) else [after]
        return changed

    def visit_Return(self, node: ast.Return) -> Any:
        if node.value is None:
            return node
        mark = _statement(f"{TOKEN} and __hook__.mark({TOKEN})", self._hook, self._names, node)
        keep = ast.copy_location(ast.Assign([ast.Name(VALUE, ast.Store())], node.value), node)
        done = _statement(f"{TOKEN} and __hook__.done({TOKEN}, {VALUE})", self._hook, self._names, node)
        back = ast.copy_location(ast.Return(ast.copy_location(ast.Name(VALUE, ast.Load()), node)), node)
        return [mark, ast.fix_missing_locations(keep), done, back]


class _Calls(_Scope):
    def __init__(self, chosen: Callable[[ast.Call], Any], names: Names) -> None:
        self._chosen, self._names, self.changed = chosen, names, 0

    def visit_Call(self, node: ast.Call) -> Any:
        hook = self._chosen(node)
        self.generic_visit(node)
        if hook is None:
            return node
        self.changed += 1
        arguments: Any = node.keywords or node.args
        if arguments:  # what the arguments take is not the call's: it begins when the last one is there
            last: Any = arguments[-1]
            entered = "(None, __hook__.on and __hook__.enter())[0]"
            if isinstance(last, ast.keyword | ast.Starred):
                last.value = self._around(entered, hook, last.value, 0)
            else:
                arguments[-1] = self._around(entered, hook, last, 0)
            return self._around("(None, __hook__.on and __hook__.leave())[0]", hook, node, 0)
        return self._around(
            "(__hook__.on and __hook__.enter(), None, __hook__.on and __hook__.leave())[1]", hook, node, 1
        )

    def _around(self, text: str, hook: Any, inner: ast.expr, place: int) -> ast.expr:
        """The expression `text`, with another one in a place of its tuple."""
        outer: Any = _expression(text, inner)
        _Hooks(self._names.of(hook)).visit(outer)
        outer.value.elts[place] = inner
        timed: ast.expr = outer
        return timed


def _tick_loops(body: list[ast.stmt], iterated: str, hook: Any, names: Names, *, token: str = TOKEN) -> int:
    """Wrap what is iterated in the loops over that expression; how many there were. Of a function that loops several
    times, the last comprehension counts: earlier ones only make its indices."""
    wanted = ast.dump(ast.parse(iterated, mode="eval").body)
    loops = [node for each in body for node in ast.walk(each) if isinstance(node, ast.For | ast.comprehension)]
    found: list[Any] = [node for node in loops if ast.dump(node.iter) == wanted]
    if all(isinstance(each, ast.comprehension) for each in found):
        found = sorted(found, key=lambda each: each.iter.lineno)[-1:]
    for loop in found:
        guard = token if token == TOKEN else "__hook__.on"
        ticked = _expression(f"__hook__.ticks({token}, None) if {guard} else None", loop.iter)
        _Hooks(names.of(hook)).visit(ticked)
        ticked.body.args[1] = loop.iter  # type: ignore[attr-defined]
        ticked.orelse = loop.iter  # type: ignore[attr-defined]
        loop.iter = ticked
    return len(found)


class _Hooks(ast.NodeTransformer):
    """Puts our object where `__hook__` stands."""

    def __init__(self, thing: ast.expr) -> None:
        self._thing = thing

    def visit_Name(self, node: ast.Name) -> Any:
        return ast.copy_location(self._thing, node) if node.id == "__hook__" else node


def _located(node: Any, place: Any) -> Any:
    for each in ast.walk(node):
        ast.copy_location(each, place)
    return node


def _statement(text: str, hook: Any, names: Names, place: ast.stmt) -> ast.stmt:
    statement: ast.stmt = _located(ast.parse(text).body[0], place)
    _Hooks(names.of(hook)).visit(statement)
    return statement


def _expression(text: str, place: ast.expr) -> ast.expr:
    expression: ast.expr = _located(ast.parse(text, mode="eval").body, place)
    return expression
