"""`stoker compare`."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from stoker.cli.options import JsonOption, app, deliver
from stoker.errors import InputError

SLOWER, CANNOT_TELL = 3, 4
"""Exit statuses: B is slower than allowed; it cannot be told, and --strict was given."""


class TwoSides(TyperCommand):
    """A command in which all that follows `--with` and is no option belongs to it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._repeated(args))

    def _repeated(self, args: list[str]) -> list[str]:
        """The words with `--with` before each of side B's."""
        taking = {name for each in self.params if not getattr(each, "is_flag", True) for name in each.opts}
        words, repeated, is_b, is_value, only_names = iter(args), [], False, False, False
        for word in words:
            if is_value or (not is_b and not word.startswith("--with")):
                repeated.append(word)
                is_value = not is_value and word in taking
            elif only_names or not word.startswith("-"):
                repeated += ["--with", word]
            elif word == "--":
                only_names = True
            elif word == "--with":
                is_b = True
            else:
                is_b |= word.startswith("--with=")
                repeated.append(word)
                is_value = word in taking
        return repeated


@app.command(cls=TwoSides)
def compare(
    a: Annotated[list[str] | None, typer.Argument(help="Side A: saved files, or names of studies.")] = None,
    b: Annotated[
        list[str] | None, typer.Option("--with", help="Side B: everything that follows.", show_default=False)
    ] = None,
    fail_if_slower: Annotated[
        str | None,
        typer.Option("--fail-if-slower", help="Exit 3 if B is slower by more than this: 5%.", show_default=False),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 4 if it cannot be told.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Compare unlike machines, too.")] = False,
    db: Annotated[Path, typer.Option("--db", help="The store of studies, one SQLite file.")] = Path("stoker.db"),
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for the summary of a CI job.")] = False,
    json: JsonOption = False,
) -> None:
    """Tell whether side B is faster than side A, and how sure that is."""
    from stoker.report.documents import comparison_document
    from stoker.report.views.compare import compare_markdown, compare_view
    from stoker.studies.sides import compare as compare_sides

    if markdown and json:
        raise InputError("--markdown and --json are two ways to print the answer; choose one")
    if not a or not b:
        raise typer.BadParameter("name results on both sides: stoker compare a1.json a2.json --with b1.json b2.json")
    allowed = None if fail_if_slower is None else share(fail_if_slower)
    found = compare_sides(a, b, db=db, anyway=anyway)
    is_slower = None if allowed is None else found.slower_than(allowed)
    verdict = None if allowed is None else _sentence(is_slower, allowed)
    if markdown:
        typer.echo(compare_markdown(found, verdict))
    else:
        document = comparison_document(found, allowed=allowed, is_slower=is_slower)
        deliver(document, compare_view(found, verdict), json=json, save=None)
    if is_slower:
        raise typer.Exit(SLOWER)
    if strict and (found.answer == "cannot_tell" if allowed is None else is_slower is None):
        raise typer.Exit(CANNOT_TELL)


def _sentence(is_slower: bool | None, allowed: float) -> str:
    limit = f"the {100 * allowed:g} % allowed"
    if is_slower is None:
        return f"It cannot be told whether it is slower by more than {limit}"
    return f"That is more than {limit}" if is_slower else f"That is within {limit}"


def share(text: str) -> float:
    """`5%` as 0.05. Raises InputError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*", text)
    if not match:
        raise InputError(f"{text!r} is not a percentage; write it like 5%")
    return float(match.group(1)) / 100
