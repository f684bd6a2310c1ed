"""What a search is asked for: a list of models, data and scores, as one task a candidate."""

import glob
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from stoker.errors import InputError
from stoker.ranking.candidate import DEFAULT_SCORES, candidate_name, score_names
from stoker.ranking.pace import MEASURED
from stoker.ranking.supply import SYNTHETIC
from stoker.ranking.worker import Checked, check_candidates
from stoker.records import Extent, Labels, Record, Task, WorkloadSpec
from stoker.workload.blocks.part import parse_part
from stoker.workload.data.folders import Listing, read_labelled


class SearchRequest(Record, frozen=True):
    """A search, checked: its candidates by name, in the order in which they were named. `items` are those that each is
    scored on; None where only the data itself can tell."""

    data: str
    device: str
    part: str
    scores: tuple[str, ...]
    combined: tuple[str, ...]
    labels: Labels
    items: int | None
    tasks: dict[str, Task]

    @property
    def study(self) -> str:
        """The name under which its trials are found in a store. Searches that differ in their models alone share it."""
        options = next(iter(self.tasks.values())).options
        same = (self.data, self.device, self.part, self.scores, self.items, options.get("classes"))
        return f"search-{sha256(repr(same).encode()).hexdigest()[:8]}"


def search_request(
    models: str | Sequence[str],
    *,
    data: str | None = None,
    score: str | None = None,
    part: str = "full",
    items: int | None = None,
    classes: int | None = None,
    device: str = "auto",
) -> SearchRequest:
    """The request in a user's words. `models` are separated by commas; `NAME@FILES` names weights, also with * and ?.

    Raises InputError for an empty list, for a model that is unknown or whose weights are not there, and for data
    without labels: before anything is run.
    """
    for name, value, least in (("items", items, 1), ("classes", classes, 2)):
        if value is not None and value < least:
            raise InputError(f"{name} must be at least {least}, got {value}")
    names = score_names(score if score is not None else DEFAULT_SCORES)
    if not names:
        raise InputError(f"name at least one score, such as {DEFAULT_SCORES}")
    text = parse_part(part).text
    specs = parse_models(models, data=data, items=items)
    checked = check_candidates(specs)
    wrong = next((each for each in checked if each.problem is not None), None)
    if wrong is not None:
        raise InputError(str(wrong.problem))
    labels: Labels = "random" if data in SYNTHETIC else "classes"
    found = _Data(data, checked, items, classes)
    options: dict[str, Any] = {"part": text, "scores": ",".join(names), "batch_size": MEASURED, "labels": labels}
    if classes is not None:
        options["classes"] = classes
    if found.identity:
        options["data_id"] = found.identity
    tasks = {
        name: _task(spec, each, {**options, "name": name}, device)
        for name, spec, each in zip(_unique_names(specs), specs, checked, strict=True)
    }
    return SearchRequest(
        data=data or "its own",
        device=device,
        part=text,
        scores=names,
        combined=names if score is not None else tuple(DEFAULT_SCORES.split(",")),
        labels=labels,
        items=found.count,
        tasks=tasks,
    )


def parse_models(
    models: str | Sequence[str], *, data: str | None = None, items: int | None = None
) -> list[WorkloadSpec]:
    """`resnet18,timm/…,resnet18@./snapshots/*.safetensors` as one specification a candidate."""
    parts = models.split(",") if isinstance(models, str) else [part for each in models for part in each.split(",")]
    specs: list[WorkloadSpec] = []
    for part in (part.strip() for part in parts):
        name, at, files = part.partition("@")
        if not part:
            continue
        if at and (not name or not files):
            raise InputError(f"{part!r} names no weights; write them like resnet18@snapshots/*.safetensors")
        found = _files(files, name) if at else (None,)
        specs += [WorkloadSpec(spec=name, data=data, items=items, weights=weights) for weights in found]
    if not specs:
        raise InputError("there is no model to compare: name some, such as --models resnet18,mobilenet_v3_small")
    if data is None and not all(spec.from_function for spec in specs):
        raise InputError(
            "name the data: a folder of class folders, FILE.py:workload, or jpeg, tensors or text for times alone"
        )
    twice = next((spec for number, spec in enumerate(specs) if spec in specs[:number]), None)
    if twice is not None:
        raise InputError(f"{candidate_name(twice)} is named twice: each candidate is run once")
    return specs


def _files(pattern: str, model: str) -> list[str]:
    """The weights files that a pattern names, in order of their names. The pattern may be a file's exact name."""
    path = str(Path(pattern).expanduser())
    found = [path] if Path(path).is_file() else _matching(path)
    if not found:
        raise InputError(f"there is no file {pattern} with weights for {model}")
    return found


def _matching(pattern: str) -> list[str]:
    return sorted(each for each in glob.glob(pattern) if Path(each).is_file())  # noqa: PTH207 - absolute patterns, too


def _unique_names(specs: Sequence[WorkloadSpec]) -> list[str]:
    """A name for each candidate. Files of the same name in several folders are named with their paths."""
    short = [candidate_name(spec) for spec in specs]
    return [
        name if short.count(name) == 1 else f"{spec.spec}@{spec.weights}"
        for name, spec in zip(short, specs, strict=True)
    ]


def _task(spec: WorkloadSpec, checked: Checked, options: dict[str, Any], device: str) -> Task:
    weights = checked.weights
    if weights is not None:
        options = {**options, "weights_id": _identity_of([Path(weights)])}
    return Task(
        kind="search",
        workload=WorkloadSpec(spec=spec.spec, data=spec.data, items=spec.items, weights=weights),
        mode="infer",
        device=device,
        extent=Extent(batches=None),
        options=options,
    )


class _Data:
    """What of the data is part of a candidate's identity, and how many items there are."""

    def __init__(self, data: str | None, checked: Sequence[Checked], items: int | None, classes: int | None) -> None:
        self.identity: str | None = None
        self.count = items
        if data is None or data in SYNTHETIC:
            return
        file = Path(data.rpartition(":")[0]).expanduser()
        if WorkloadSpec(spec=data).from_function:
            self.identity = sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else None
            return
        folder = Path(data).expanduser()
        if not folder.exists():
            raise InputError(f"there is no folder {data}; --data is a folder of class folders, {', '.join(SYNTHETIC)}")
        if (folder / "stoker.json").is_file():
            self.identity = _identity_of([folder / "stoker.json"])
            return
        media = {each.medium for each in checked} - {"own"}
        found: list[str] = []
        for medium in sorted(media):
            listing = read_labelled(folder, "texts" if medium == "text" else "images", classes=classes)
            self.count = len(listing) if items is None else min(items, len(listing))
            found.append(_identity_of_listing(listing, self.count))
        self.identity = ",".join(found) or None


def _identity_of_listing(listing: Listing, count: int) -> str:
    return _identity_of(listing.paths(count), root=Path(listing.root))


def _identity_of(files: Sequence[Path], *, root: Path | None = None) -> str:
    """A digest of the names, sizes and times of files: their contents would take as long to read as to search."""
    digest = sha256()
    for file in files:
        try:
            known = file.stat()
        except OSError as error:
            raise InputError(f"cannot read {file}: {error.strerror or error}") from None
        name = file.relative_to(root) if root is not None else file.name
        digest.update(f"{name}\0{known.st_size}\0{known.st_mtime_ns}\n".encode(errors="replace"))
    return digest.hexdigest()[:16]
