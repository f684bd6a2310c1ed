"""Finds what to change in a user's own code so that a loader gets other arguments: the file, the line, and the words.

The code is parsed and never run. Where an argument is a literal of the call, the call is changed. Where it comes from a
variable, a dictionary or the command line, that place is.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stoker.records import Edit, Record

Value = int | float | bool | str

_POSITIONS = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")
"""The first parameters of `DataLoader`."""
_TRAINER = {
    "num_workers": "dataloader_num_workers",
    "prefetch_factor": "dataloader_prefetch_factor",
    "persistent_workers": "dataloader_persistent_workers",
    "pin_memory": "dataloader_pin_memory",
    "batch_size": "per_device_train_batch_size",
}
"""The arguments of `transformers.TrainingArguments`."""
_TRAINERS = ("transformers", "trl", "sentence_transformers", "setfit")
_SHOWN = ("num_workers", "prefetch_factor", "persistent_workers")
_LONGEST = 60


class Change(NamedTuple):
    """What to change: lines of code, words to add to the command, or a sentence."""

    edits: tuple[Edit, ...] = ()
    arguments: tuple[str, ...] = ()
    how: str = ""


class Site(Record, frozen=True):
    """Where a loader was made: the user's frames, innermost first, the packages between them and the loader, and the
    script that ran. Of a loader that is not `known` to be made there, the frames are where it is read."""

    frames: tuple[tuple[str, int], ...]
    made_by: tuple[str, ...] = ()
    script: str | None = None
    known: bool = True


def change_for(site: Site, changes: Mapping[str, Value]) -> Change:
    """How to give the loader that was made here these arguments."""
    trainer = next((name for name in site.made_by if name in _TRAINERS), None)
    files = dict.fromkeys([*(file for file, _ in site.frames), *filter(None, [site.script])])
    sources = [source for source in map(_Source.read, files) if source is not None]
    if trainer is not None:
        return _of_trainer(sources, {_TRAINER.get(name, name): value for name, value in changes.items()})
    for file, line in site.frames:
        source = next((each for each in sources if each.file == file), None)
        call = source.loader_call(line) if source is not None else None
        is_made = site.known or (call is not None and name_of(call.func).endswith("DataLoader"))
        if source is not None and call is not None and is_made:
            return _of_call(source, call, changes, sources)
    if not site.known:
        only = _only_call(sources)
        if only is not None:
            return _of_call(*only, changes, sources)
    words = ", ".join(f"{name}={value!r}" for name, value in changes.items())
    if not site.frames:
        return Change(how=f"give the loader these arguments: {words}")
    file, line = site.frames[0]
    does = "makes the loader; give it" if site.known else "reads the loader; where it is made, give it"
    return Change(how=f"{shown(file)}:{line} {does} these arguments: {words}")


def _only_call(sources: "Sequence[_Source]") -> "tuple[_Source, ast.Call] | None":
    """The one call of `DataLoader` in these files, or the one of several that shuffles."""
    calls = [(each, call) for each in sources for call in each.calls() if name_of(call.func).endswith("DataLoader")]
    shuffled = [pair for pair in calls if any(_is_shuffle(each) for each in pair[1].keywords)]
    return calls[0] if len(calls) == 1 else shuffled[0] if len(shuffled) == 1 else None


def _is_shuffle(keyword: ast.keyword) -> bool:
    return keyword.arg == "shuffle" and _literal(keyword.value) is True


def shown(file: str) -> str:
    """A path from the current folder on, where it lies in it."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file


# ---------------------------------------------------------------- one file


class _Source:
    """A file and its tree."""

    def __init__(self, file: str, text: str, tree: ast.Module) -> None:
        self.file, self.text, self.tree = file, text, tree

    @classmethod
    def read(cls, file: str) -> "_Source | None":
        try:
            text = Path(file).read_text(encoding="utf-8")
            return cls(file, text, ast.parse(text))
        except (OSError, SyntaxError, ValueError, RecursionError):
            return None

    def calls(self) -> Iterable[ast.Call]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def loader_call(self, line: int) -> ast.Call | None:
        """The call on a line that makes a loader: `DataLoader`, or else one that is named like a loader or is given
        workers."""
        around = [call for call in self.calls() if call.lineno <= line <= (call.end_lineno or call.lineno)]
        ranked = []
        for call in around:
            name = name_of(call.func)
            named = {each.arg for each in call.keywords}
            kind = 0 if name.endswith("DataLoader") else 1 if "num_workers" in named else 2
            if kind < 2 or "loader" in name.lower():
                trains = any(map(_is_shuffle, call.keywords))
                ranked.append((kind, call.lineno != line, not trains, -call.lineno, -call.col_offset, call))
        return min(ranked, key=lambda each: each[:-1])[-1] if ranked else None

    def words(self, node: ast.AST) -> str:
        """The text of a node, on one line and not too long."""
        text = " ".join((ast.get_source_segment(self.text, node) or ast.unparse(node)).split())
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"

    def edit(self, node: Any, before: str, after: str) -> Edit:
        return Edit(file=shown(self.file), line=node.lineno, before=before, after=after)


def name_of(function: ast.expr) -> str:
    """The last name of what is called."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _literal(node: ast.AST | None) -> Any:
    """The value of a constant; an object that equals nothing for everything else."""
    return node.value if isinstance(node, ast.Constant) else object()


# ---------------------------------------------------------------- the call


class _Found(NamedTuple):
    """Where one argument is set, other than in the call itself."""

    edit: Edit | None = None
    arguments: tuple[str, ...] = ()


def _of_call(source: _Source, call: ast.Call, changes: Mapping[str, Value], sources: Sequence[_Source]) -> Change:
    """Arguments of the call are changed in it, unless they come from elsewhere."""
    inside: dict[str, Value] = {}
    edits: list[Edit] = []
    words: list[str] = []
    for name, value in changes.items():
        found = _elsewhere(source, call, name, value, sources)
        if found is None:
            inside[name] = value
        else:
            edits += [found.edit] if found.edit is not None else []
            words += found.arguments
    if inside:
        edits.insert(0, source.edit(call, _call_in_words(source, call, inside), _in_words(inside)))
    return Change(tuple(dict.fromkeys(edits)), tuple(words))


def _in_words(arguments: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _call_in_words(source: _Source, call: ast.Call, changed: Mapping[str, Value]) -> str:
    """The call with the arguments that matter: `DataLoader(…, num_workers=4)`."""
    parts = []
    for name in dict.fromkeys((*changed, *(each for each in _SHOWN if each in changed))):
        node = _argument(call, name)
        keyword = any(each.arg == name for each in call.keywords)
        if node is not None:
            parts.append(f"{name}={source.words(node)}" if keyword else source.words(node))
    inner = ", ".join(["…", *parts]) if call.args or call.keywords else ", ".join(parts)
    return f"{source.words(call.func)}({inner})"


def _argument(call: ast.Call, name: str) -> ast.expr | None:
    """What a call is given for a parameter of `DataLoader`, by name or by position."""
    for each in call.keywords:
        if each.arg == name:
            return each.value
    if name_of(call.func).endswith("DataLoader") and name in _POSITIONS:
        place = _POSITIONS.index(name)
        if place < len(call.args) and not any(isinstance(each, ast.Starred) for each in call.args[: place + 1]):
            return call.args[place]
    return None


def _elsewhere(source: _Source, call: ast.Call, name: str, value: Value, sources: Sequence[_Source]) -> _Found | None:
    """Where an argument is set, if that is not in the call."""
    given = _argument(call, name)
    if isinstance(given, ast.Name):
        return _of_variable(source, call, given.id, value)
    if isinstance(given, ast.Attribute):
        return _of_options(sources, given.attr, value)
    if isinstance(given, ast.Subscript):
        key = _literal(given.slice)
        return _of_dictionary(sources, key, value) if isinstance(key, str) else None
    if given is None and any(each.arg is None for each in call.keywords):
        return _of_dictionary([source], name, value)
    return None


def _of_variable(source: _Source, call: ast.Call, name: str, value: Value) -> _Found | None:
    """`workers = 4`, or the default of a parameter."""
    last = None
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno < call.lineno:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                last = node if last is None or node.lineno > last.lineno else last
    if last is not None and isinstance(last.value, ast.Constant):
        return _Found(source.edit(last, source.words(last), _assigned(last, value)))
    if last is not None and isinstance(last.value, ast.Attribute):
        return _of_options([source], last.value.attr, value)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and call in set(ast.walk(node)):
            found = _default(source, node, name, value)
            if found is not None:
                return _Found(found)
    return None


def _assigned(node: ast.Assign | ast.AnnAssign, value: Value) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    note = f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
    return f"{ast.unparse(target)}{note} = {value!r}"


def _default(source: _Source, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, value: Value) -> Edit | None:
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(plain[len(plain) - len(arguments.defaults) :], arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    for parameter, default in pairs:
        if parameter.arg == name and isinstance(default, ast.Constant):
            before = f"{name}={source.words(default)}"
            return source.edit(parameter, f"def {node.name}(…, {before})", f"{name}={value!r}")
    return None


def _of_options(sources: Sequence[_Source], name: str, value: Value) -> _Found | None:
    """An option of the command line, or a field of a configuration class, whose name this is."""
    for source in sources:
        for call in source.calls():
            option = _option(call, name) if name_of(call.func) == "add_argument" else None
            if option is not None:
                return _Found(arguments=(option, str(value)))
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.AnnAssign | ast.Assign) or not isinstance(node.value, ast.Constant):
                continue
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if name_of(target) == name:
                return _Found(source.edit(node, source.words(node), _assigned(node, value)))
    return None


def _option(call: ast.Call, name: str) -> str | None:
    """The option of an `add_argument` whose value goes to this attribute; None for switches."""
    if any(each.arg == "action" for each in call.keywords):
        return None
    options = [_literal(each) for each in call.args]
    flags = [each for each in options if isinstance(each, str) and each.startswith("-")]
    long = [each for each in flags if each.startswith("--")]
    given = next((_literal(each.value) for each in call.keywords if each.arg == "dest"), None)
    destination = given or (long or flags or [""])[0].lstrip("-").replace("-", "_")
    return next(iter(long or flags), None) if destination == name else None


def _of_dictionary(sources: Sequence[_Source], key: str, value: Value) -> _Found | None:
    """An entry of a dictionary: `{"num_workers": 4}` or `dict(num_workers=4)`. Without one it is to be added where a
    dictionary of such arguments is made."""
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Dict):
                for name, held in zip(node.keys, node.values, strict=True):
                    if name is not None and _literal(name) == key and isinstance(held, ast.Constant):
                        before = f"{source.words(name)}: {source.words(held)}"
                        return _Found(source.edit(held, before, f"{source.words(name)}: {value!r}"))
            if isinstance(node, ast.Call) and name_of(node.func) in ("dict", "update"):
                for each in node.keywords:
                    if each.arg == key and isinstance(each.value, ast.Constant):
                        return _Found(source.edit(each.value, f"{key}={source.words(each.value)}", f"{key}={value!r}"))
    return None


# ---------------------------------------------------------------- frameworks


def _of_trainer(sources: Sequence[_Source], changes: Mapping[str, Value]) -> Change:
    """The arguments of a trainer that makes the loader itself."""
    for source in sources:
        for call in source.calls():
            name = name_of(call.func)
            named = {each.arg for each in call.keywords}
            if name.endswith("TrainingArguments") or (name.endswith("Config") and named & {*_TRAINER.values()}):
                return _of_call(source, call, changes, sources)
    words = [word for name, value in changes.items() for word in (f"--{name}", str(value))]
    if any(name_of(call.func) == "HfArgumentParser" for source in sources for call in source.calls()):
        return Change(arguments=tuple(words))
    return Change(how=f"give the TrainingArguments: {_in_words(changes)}")
