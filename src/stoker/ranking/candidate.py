"""One candidate of a search: its weights, its blocks, its features, its scores."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

from stoker.errors import InputError
from stoker.events import OnEvent, Progress
from stoker.measure.device import parse_device, peaks_of
from stoker.measure.interference import InterferenceGauge
from stoker.measure.session import outcome_of
from stoker.ranking.features import Collected, FeatureTap
from stoker.ranking.pace import Pace
from stoker.ranking.reader import Reader
from stoker.ranking.resampling import RESAMPLING, ResampleRules, score_model
from stoker.ranking.scores import SCORES
from stoker.ranking.states import StateStore
from stoker.ranking.static import static_figure
from stoker.ranking.supply import HostStore, Items, Loaded, Options, Supply, open_items, place_files
from stoker.records import CandidateStages, CandidateTrial, ScoreSample, StaticFigure, Task, WeightsSource, WorkloadSpec
from stoker.records.part import Part, parse_part
from stoker.workload import calls, models
from stoker.workload.batch import without_target
from stoker.workload.blocks.block import Block, Blocks, run
from stoker.workload.blocks.cost import describe as describe_blocks
from stoker.workload.blocks.division import split
from stoker.workload.blocks.part import cut, joint
from stoker.workload.blocks.state import item_count, rows
from stoker.workload.spec import load
from stoker.workload.workload import Workload

DEFAULT_SCORES = "nleep,logme"
SPLIT_ITEMS = 2
"""A model is divided on an example of so many items: the fewest that show whether their number matters."""


@dataclass
class Shared:
    """What candidates of one process share: items in memory, weights that are read ahead, and who comes later."""

    store: HostStore = field(default_factory=HostStore)
    reader: Reader = field(default_factory=Reader)
    keeps_prepared: bool = False
    keeps_decoded: bool = False
    next_weights: Path | None = None


def run_candidate(task: Task, *, shared: Shared | None = None, on_event: OnEvent | None = None) -> CandidateTrial:
    """Run one candidate in this process. What becomes of it is the trial's outcome; nothing is raised but interrupts.

    `task.kind` is "search". Its options are `part` (full), `scores` (nleep,logme; empty for none), `classes`, `labels`
    (classes or random), `resamples` (how many for intervals), and `batch_size`: "measured" chooses batch size and
    workers by measuring; otherwise those of `task.setting` are used. An extent with a `warmup` runs so many batches
    before those that are timed.
    """
    one = _Candidate(task, shared or Shared(), on_event or (lambda _: None))
    one.run()
    return one.trial()


def candidate_name(spec: WorkloadSpec) -> str:
    """How a candidate is called: `resnet18`, `resnet18@birds.safetensors`."""
    return spec.spec if spec.weights is None else f"{spec.spec}@{Path(spec.weights).name}"


class _Candidate:
    """One candidate while it runs. What is known of it when it fails is in its trial, too."""

    def __init__(self, task: Task, shared: Shared, emit: OnEvent) -> None:
        if task.workload is None:
            raise InputError("a candidate of a search is named: a model, or file.py:function")
        self._task, self._spec, self._shared, self._emit = task, task.workload, shared, emit
        self._known: dict[str, Any] = {
            "model": str(task.options.get("name", candidate_name(task.workload))),
            "task": task,
            "when": datetime.now(UTC),
            "part": str(task.options.get("part", "full")),
            "data": task.workload.data or "its own",
        }
        self._stages: dict[str, Any] = {}
        self._began = self._said_s = perf_counter()
        self._notes: list[str] = []

    # ------------------------------------------------------------ the whole of it

    def run(self) -> None:
        gauge = InterferenceGauge()
        torch.manual_seed(self._task.extent.seed)
        try:
            with torch.no_grad():
                self._run()
            self._known["outcome"] = "done"
        except Exception as error:
            self._known["outcome"], self._known["problem"] = outcome_of(error)
        finally:
            self._shared.reader.drop(self._weights)
        interference, idle_cpus = gauge.read()
        self._known |= {"interference": interference, "idle_cpus": idle_cpus}

    def trial(self) -> CandidateTrial:
        total_s = perf_counter() - self._began
        stages = CandidateStages(**self._stages)
        return CandidateTrial(**self._known, stages=stages, notes=tuple(self._notes), total_s=total_s)

    def _run(self) -> None:
        device = parse_device(self._task.device)
        if not isinstance(device, torch.device):
            raise InputError(f"{self._task.device} computes nothing that could be scored; choose cpu or cuda")
        self._device = device
        self._known["device"] = str(device)
        part = parse_part(str(self._task.options.get("part", "full")))
        names = score_names(str(self._task.options.get("scores", DEFAULT_SCORES)))
        self._workload, kind = _opened(self._spec)
        began = perf_counter()
        items = open_items(kind, self._data_workload(), self._spec, self._options())
        self._stages["start_s"] = perf_counter() - began
        self._known |= {"data": items.name, "labels": items.source, "image_size": items.image_size}
        place_files(items, self._task.extent.source, [self._weights] if self._weights else [])
        model = self._model(kind)
        supply = Supply(
            items,
            self._shared.store,
            keeps_prepared=self._shared.keeps_prepared,
            keeps_decoded=self._shared.keeps_decoded,
        )
        self._known["items_from"] = "memory" if self._task.extent.source == "memory" else supply.source
        extraction = self._extraction(model, part, supply)
        try:
            if self._task.extent.warmup:
                extraction.warm_up(self._task.extent.warmup)
            found = extraction.run()
        except BaseException:
            supply.abandon()
            raise
        finally:
            self._stages |= extraction.samples()
            self._known |= extraction.facts()
        supply.finish()
        self._score(found, items, names)

    def _options(self) -> Options:
        asked = self._task.options
        classes = asked.get("classes")
        labels = "random" if asked.get("labels") == "random" else "classes"
        return Options(classes=int(classes) if classes is not None else None, labels=labels)  # type: ignore[arg-type]

    @property
    def _weights(self) -> Path | None:
        return Path(self._spec.weights).expanduser() if self._spec.weights else None

    def _data_workload(self) -> Workload | None:
        """The workload that has the data, where they are the user's own."""
        data = self._spec.data
        if self._workload is not None and data in (None, self._spec.spec):
            return self._workload
        if data is not None and WorkloadSpec(spec=data).from_function:
            return load(data)
        if self._workload is not None:
            raise InputError(f"{self._spec.spec} prepares its own data; give it as --data too, or leave it out")
        return None

    # ------------------------------------------------------------ the model

    def _model(self, kind: models.ModelKind | None) -> nn.Module:
        """The model on its device, in evaluation mode."""
        state = None
        if self._weights is not None:
            began = perf_counter()
            read = self._shared.reader.get(self._weights)
            self._stages["read_wait_s"] = perf_counter() - began
            self._stages["read_s"], self._stages["read_resident"] = (read.seconds,), read.resident
            state = read.state
        began = perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if self._workload is not None:
                model = calls.make_model(self._workload)
            elif state is not None and self._weights is not None:
                model = models.with_state(self._spec.spec, state, path=self._weights)
            else:
                model = models.build(self._spec.spec)
        self._notes += [str(each.message) for each in caught if "stay random" in str(each.message)]
        model.eval().requires_grad_(False)
        self._stages["build_s"] = perf_counter() - began
        began = perf_counter()
        model.to(self._device)
        self._settle()
        self._stages["move_s"] = perf_counter() - began
        parameters = sum(each.numel() for each in model.parameters())
        self._known["parameters"] = parameters
        self._known |= _origin(self._spec, kind, parameters)
        return model

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    # ------------------------------------------------------------ features

    def _extraction(self, model: nn.Module, part: Part, supply: Supply) -> "_Extraction":
        blocks = Blocks((Block(name=type(model).__name__, call=self._call(model)),))
        begin = 0
        if not part.is_full or part.heads > 1:
            began = perf_counter()
            blocks, begin = self._divided(model, part, supply)
            self._stages["split_s"] = perf_counter() - began
        runs: Callable[[Any], Any]
        if part.heads > 1:
            heads = joint(blocks, part, self._costs)
            heads.to(self._device).eval()
            self._known["blocks_run"] = begin + part.heads * (len(blocks) - begin)
            runs, begin = (lambda state: run((Block(name="joint", call=heads),), state)), 0
        else:
            later = blocks[begin:]
            runs = lambda state: run(later, state)  # noqa: E731
        return _Extraction(
            task=self._task,
            supply=supply,
            shared=self._shared,
            tap=FeatureTap(model, convolution_head=self._workload is None),
            prefix=blocks[:begin],
            runs=runs,
            device=self._device,
            say=self._say,
            settle=self._settle,
        )

    def _call(self, model: nn.Module) -> Callable[..., Any]:
        """How the model is called: as it is, or as the user's workload says."""
        own = self._workload.forward if self._workload is not None else None
        if own is None:
            return model
        return lambda *inputs: own(model, inputs[0] if len(inputs) == 1 else inputs)

    def _divided(self, model: nn.Module, part: Part, supply: Supply) -> tuple[Blocks, int]:
        """The model's blocks, and the one that the part begins with."""
        example = _moved(supply.peek(SPLIT_ITEMS).inputs, self._device)
        blocks = split(model, example)
        self._costs = describe_blocks(blocks, example, runs=3) if part.unit == "time" else None
        begin = cut(blocks, part, self._costs)
        self._known |= {
            "blocks": len(blocks),
            "blocks_run": len(blocks) - begin,
            "whole_reason": blocks.whole_reason,
        }
        return blocks, begin

    # ------------------------------------------------------------ scores

    def _score(self, found: Collected, items: Items, names: Sequence[str]) -> None:
        labels = np.asarray(found.labels, dtype=np.int64)
        features = found.features()
        self._known |= {
            "classes": len(np.unique(labels)),
            "labels_digest": sha256(labels.tobytes()).hexdigest()[:16],
            "feature_size": int(features.shape[1]),
        }
        if not names:
            return
        if self._known["classes"] < 2:
            raise InputError(f"the {len(labels)} items are all of one class: nothing can be told apart")
        needs = {SCORES[name].needs for name in names}
        probabilities = found.probabilities() if needs - {"features"} else None
        given: dict[str, Any] = {"features": features}
        if probabilities is not None:
            given |= {"source_probabilities": probabilities, "source_labels": probabilities.argmax(axis=1)}
        self._emit(Progress(what=f"{self._known['model']}: scoring", done=0, of=len(names)))
        samples, problems = _scored(labels, given, names, self._rules())
        self._stages["score_s"] = {each.score: each.seconds for each in samples}
        self._stages["resample_s"] = {each.score: each.resample_s for each in samples}
        self._known |= {"scores": tuple(samples), "score_problems": problems}
        if not samples:
            raise InputError(next(iter(problems.values())))

    def _rules(self) -> ResampleRules:
        asked = self._task.options.get("resamples")
        return RESAMPLING if asked is None else msgspec.structs.replace(RESAMPLING, resamples=int(asked))

    def _say(self, what: str, done: int, of: int | None) -> None:
        """Report progress, at most ten times a second: an event costs a system call."""
        now = perf_counter()
        if now - self._said_s >= 0.1:
            self._said_s = now
            self._emit(Progress(what=f"{self._known['model']}: {what}", done=done, of=of))

    _costs: Any = None


class _Extraction:
    """Runs blocks on all items and collects features. With a part, the blocks before it run first and their outputs
    are stored; then the part runs on what is loaded from there."""

    def __init__(
        self,
        *,
        task: Task,
        supply: Supply,
        shared: Shared,
        tap: FeatureTap,
        prefix: Blocks,
        runs: Callable[[Any], Any],
        device: torch.device,
        say: Callable[[str, int, int | None], None],
        settle: Callable[[], None],
    ) -> None:
        self._task, self._supply, self._shared, self._tap = task, supply, shared, tap
        self._prefix, self._runs, self._device, self._say, self._settle = prefix, runs, device, say, settle
        names = score_names(str(task.options.get("scores", DEFAULT_SCORES)))
        self._found = Collected(keeps_outputs=any(SCORES[name].needs != "features" for name in names))
        self._load_s: list[float] = []
        self._copy_s: list[float] = []
        self._infer_s: list[float] = []
        self._prefix_s: list[float] = []
        self._items: list[int] = []
        self._skipped = 0
        self._pace = Pace(task, supply, device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def run(self) -> Collected:
        if self._task.extent.source == "memory":
            self._from_memory()
        elif len(self._prefix):
            self._from_states()
        else:
            self._from_supply()
        if not self._items:
            skipped = f": none of {self._skipped} could be read" if self._skipped else ""
            raise InputError(f"the set {self._supply.items.name} gives no items{skipped}")
        return self._found

    def warm_up(self, batches: int) -> None:
        """Run the first batch a few times, untimed: a model's first batch costs more than the others."""
        loaded = self._supply.peek(self._task.setting.batch_size)
        for _ in range(batches):
            self._runs(_moved(self._prefixed(loaded).inputs, self._device))
        self._settle()

    def samples(self) -> dict[str, Any]:
        return {
            "load_s": tuple(self._load_s),
            "copy_s": tuple(self._copy_s),
            "infer_s": tuple(self._infer_s),
            "prefix_s": tuple(self._prefix_s),
            "batch_items": tuple(self._items),
        }

    def facts(self) -> dict[str, Any]:
        pace = self._pace
        return {
            "items": sum(self._items),
            "skipped": self._skipped,
            "batch_size": pace.batch_size,
            "num_workers": pace.num_workers,
            "setting": self._task.setting,
            "setting_reason": pace.reason,
            "peaks": peaks_of(self._device),
        }

    # ------------------------------------------------------------ where batches come from

    def _from_supply(self) -> None:
        self._paced(self._take)

    def _paced(self, take: Callable[[Loaded, float], float]) -> None:
        """Batches as they are loaded: first the few by which batch size and workers are chosen, then the rest."""
        limit, done = self._pace.limit, 0
        while limit is None or done < limit:
            size = self._pace.next_size()
            if size is None:
                break
            began = perf_counter()
            loaded = self._supply.one_by_one(size)
            load_s = perf_counter() - began
            if loaded is None:
                return
            self._pace.saw(len(loaded.places), load_s, take(loaded, load_s))
            done += 1
        self._timed(islice(self._batches(), None if limit is None else max(0, limit - done)), take)

    def _batches(self) -> Any:
        """What is left, with the chosen setting. The weights of the next candidate are read from here on: all workers
        have been forked by then, and a fork beside a thread that reads could hang."""
        pace = self._pace
        pinned = self._device.type == "cuda"
        made = iter(self._supply.batches(pace.batch_size, pace.num_workers, pinned=pinned, prefetch=pace.prefetch))
        first = next(made, None)
        self._shared.reader.start(self._shared.next_weights)
        if first is not None:
            yield first
            yield from made

    def _from_memory(self) -> None:
        """All batches are loaded before the first is timed."""
        self._pace.fix()
        loaded = list(islice(self._batches(), self._pace.limit))
        if len(self._prefix):
            states = [self._prefixed(each) for each in loaded]
            self._timed(states, self._take)
        else:
            self._timed(loaded, self._take)

    def _from_states(self) -> None:
        """A part: the blocks before it run on all items and their outputs are stored; then the part runs on those."""
        with StateStore(self._shared.store.limit_bytes - self._shared.store.used_bytes) as store:

            def before_part(loaded: Loaded, load_s: float) -> float:
                began = perf_counter()
                made = self._prefixed(loaded)
                self._settle()
                seconds = perf_counter() - began
                self._prefix_s.append(load_s + seconds)
                store.add(made)
                self._say("blocks before the part", self._supply.next_place, self._supply.items.count)
                return seconds

            self._paced(before_part)
            self._timed(store.batches(), self._take)

    def _prefixed(self, loaded: Loaded) -> Loaded:
        if loaded.inputs is None:
            return loaded
        state = run(self._prefix, _moved(loaded.inputs, self._device))
        return loaded._replace(inputs=_moved(state, torch.device("cpu")))

    def _timed(self, batches: Any, take: Callable[[Loaded, float], float]) -> None:
        began = perf_counter()
        for loaded in batches:
            take(loaded, perf_counter() - began)
            began = perf_counter()

    # ------------------------------------------------------------ one batch

    def _take(self, loaded: Loaded, load_s: float) -> float:
        """Run a batch; the seconds that it took."""
        self._skipped += loaded.skipped
        if loaded.inputs is None:
            return 0.0
        began = perf_counter()
        state = _moved(loaded.inputs, self._device)
        self._settle()
        copied = perf_counter()
        self._infer(state, self._labels_of(loaded))
        self._settle()
        over = perf_counter()
        self._load_s.append(load_s)
        self._copy_s.append(copied - began)
        self._infer_s.append(over - copied)
        self._items.append(len(loaded.places))
        self._say("features", sum(self._items), self._supply.items.count)
        return over - copied

    def _infer(self, state: Any, labels: list[int]) -> None:
        """Features of a batch. One that does not fit into the device's memory is run in halves."""
        if self._fits(state, labels):
            return
        torch.cuda.empty_cache()  # not where the error is handled: until then it holds all that the batch took
        count = item_count(state)
        self._pace.too_large(count)
        half = count // 2
        self._infer(rows(state, 0, half), labels[:half])
        self._infer(rows(state, half, count), labels[half:])

    def _fits(self, state: Any, labels: list[int]) -> bool:
        """Keep the features of a batch; False if the device's memory was too small for more than one item."""
        try:
            with self._tap.watching():
                output = self._runs(state)
            features, outputs = self._tap.take(output)
            self._found.add(features, outputs, labels)
        except torch.cuda.OutOfMemoryError:
            if item_count(state) < 2:
                raise
            return False
        return True

    def _labels_of(self, loaded: Loaded) -> list[int]:
        known = self._supply.items.labels
        if known is not None:
            return [int(known[place % len(known)]) for place in loaded.places]
        if not loaded.labels:
            raise InputError(
                f"the set {self._supply.items.name} gives no class number for each item, so there are no labels to "
                "score against: its batches must be (inputs, classes), or a mapping with labels"
            )
        return loaded.labels


def _scored(
    labels: Any, given: dict[str, Any], names: Sequence[str], rules: ResampleRules
) -> tuple[tuple[ScoreSample, ...], dict[str, str]]:
    """The scores, and the sentence of each that cannot be computed. All are computed in one call, so that they share
    the time of their subsets; only where that fails, one after another shows which cannot be."""
    try:
        return score_model(labels, **given, scores=names, rules=rules), {}
    except InputError:
        problems: dict[str, str] = {}
    for name in names:
        try:
            score_model(labels, **given, scores=(name,), rules=msgspec.structs.replace(RESAMPLING, resamples=0))
        except InputError as error:
            problems[name] = str(error)
    good = tuple(name for name in names if name not in problems)
    return (score_model(labels, **given, scores=good, rules=rules) if good else ()), problems


def score_names(text: str) -> tuple[str, ...]:
    """`nleep,logme`. Raises InputError for a score that does not exist."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in SCORES:
            raise InputError(f"there is no score {name!r}; choose from {', '.join(SCORES)}")
    return names


def _moved(state: Any, device: Any) -> Any:
    inputs = without_target(state)
    return calls.to_device(tuple(inputs) if isinstance(inputs, list) else inputs, device, non_blocking=True)


def _opened(spec: WorkloadSpec) -> tuple[Workload | None, models.ModelKind | None]:
    """The user's workload, or the kind of a named model."""
    if not spec.from_function:
        return None, models.describe(spec.spec)
    if spec.weights is not None:
        raise InputError(f"weights go with a model's name; {spec.spec} brings its own, so change them there")
    return load(spec.spec), None


def _origin(spec: WorkloadSpec, kind: models.ModelKind | None, parameters: int) -> dict[str, Any]:
    """Where the weights come from, and the static figure that belongs to them."""
    source: WeightsSource = "workload" if kind is None else "random"
    static = StaticFigure(parameters=parameters)
    if spec.weights is not None:
        path = Path(spec.weights).expanduser().resolve()
        cache = Path(torch.hub.get_dir(), "checkpoints").expanduser().resolve()
        source = "download_cache" if path.parent == cache else "file"
        published = published_name(spec.spec, path.name) if kind is not None and kind.source == "torchvision" else None
        if published is not None:
            static = static_figure(spec.spec, weights=published)
    elif kind is not None and kind.source == "torchvision":
        static = static_figure(kind.name)
    return {"weights": source, "weights_file": spec.weights, "static": static}


def published_name(model: str, file: str) -> str | None:
    """The name of the published weights of a torchvision model that come in a file of this name."""
    from torchvision import models as known

    try:
        weights = known.get_model_weights(model)
    except ValueError:
        return None
    return next((each.name for each in weights if each.url.rsplit("/", 1)[-1] == file), None)


def crashed(task: Task, outcome: Any, problem: Any, seconds: float) -> CandidateTrial:
    """The trial of a candidate whose process died, or that ran out of time."""
    assert task.workload is not None
    return CandidateTrial(
        model=str(task.options.get("name", candidate_name(task.workload))),
        outcome=outcome,
        problem=problem,
        task=task,
        when=datetime.now(UTC),
        part=str(task.options.get("part", "full")),
        data=task.workload.data or "its own",
        device=task.device,
        weights_file=task.workload.weights,
        total_s=seconds,
    )
