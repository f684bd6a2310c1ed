"""The labelled items of a search: opened once for each candidate, and kept in memory between candidates.

What is kept are prepared items, for later candidates with the same preprocessing, or decoded images, for those with
another. Both count against the same bound; what no later candidate can use is dropped.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from stoker.errors import InputError
from stoker.machine import pagecache
from stoker.ranking.preprocessing import Preparation, preparation
from stoker.records import ItemsSource, Labels, WorkloadSpec
from stoker.workload import calls
from stoker.workload.data.folders import Listing, read_labelled
from stoker.workload.data.images import CorruptItem, decode, read_bytes
from stoker.workload.data.open import KINDS, open_data
from stoker.workload.models import ModelKind
from stoker.workload.spec import check_named
from stoker.workload.workload import Workload

SYNTHETIC = tuple(kind for kind in KINDS if not kind.startswith("device-"))
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")


class Loaded(NamedTuple):
    """A batch: the model's inputs, the labels, the place of each item in the set, and how many could not be read."""

    inputs: Any
    labels: list[int]
    places: list[int]
    skipped: int
    decoded: list[Any]
    pictures: list[Any]


@dataclass(frozen=True, kw_only=True)
class Items:
    """A candidate's items. `key` names what its prepared items depend on, `decoded_key` what decoded images depend on;
    None where they cannot be kept. `labels` are known ahead for folders and random labels."""

    dataset: Any
    name: str
    count: int | None
    labels: NDArray[np.int64] | None
    source: Labels
    collate_fn: Callable[[list[Any]], Any]
    key: str | None = None
    decoded_key: str | None = None
    image_size: int | None = None
    files: Callable[[], Sequence[Path]] = list


def open_items(kind: ModelKind | None, workload: Workload | None, spec: WorkloadSpec, options: "Options") -> Items:
    """The items of one candidate. `workload` has the data where they are the user's own.

    Raises InputError where the data does not suit the model, has no labels, or has one class.
    """
    if workload is not None:
        return _of_workload(workload, spec, options)
    assert kind is not None
    if not kind.trainable or kind.medium == "video":
        raise InputError(f"{kind.name} is a {kind.family} model; a search compares classifiers of images and of texts")
    data = spec.data or kind.data
    wanted = "text" if kind.medium == "text" else "image"
    gives = {"text": "text", "video": "video"}.get(data, "image") if data in SYNTHETIC else wanted
    if gives != wanted:
        raise InputError(f"{kind.name} takes {wanted} data, and --data {data} gives {gives} data")
    if data in SYNTHETIC:
        return _synthetic(kind, data, spec, options)
    folder = Path(data).expanduser()
    if not folder.exists():
        raise InputError(f"there is no folder {data}; --data is a folder of class folders, {', '.join(SYNTHETIC)}")
    named = options.classes if options.labels == "classes" else None
    if wanted == "text":
        return _texts(kind, folder, spec, options)
    if (folder / "stoker.json").is_file():
        return _prepared(kind, data, spec, options)
    return _images(preparation(kind), read_labelled(folder, classes=named), folder.name, spec, options)


class Options(NamedTuple):
    """What a candidate's task says about labels."""

    classes: int | None = None
    labels: Labels = "classes"


def random_labels(count: int, classes: int) -> NDArray[np.int64]:
    """Labels that mean nothing, always the same: as many of each class as of the others, in random order. Where not
    every class can have two items, each item's class is drawn: a score can test nothing on single items."""
    random = np.random.default_rng(0)
    if count < 2 * classes:
        return random.integers(classes, size=count)
    return random.permutation(np.arange(count, dtype=np.int64) % classes)


DEFAULT_CLASSES = 100
"""Of random labels, as in the published experiments."""


def _labels(listing_labels: Any, count: int, options: Options) -> NDArray[np.int64]:
    if options.labels == "random":
        return random_labels(count, options.classes or DEFAULT_CLASSES)
    return np.asarray(listing_labels[:count], dtype=np.int64)


def _images(prepared: Preparation, listing: Listing, name: str, spec: WorkloadSpec, options: Options) -> Items:
    count = len(listing) if spec.items is None else min(spec.items, len(listing))
    data_key = f"{listing.root}:{count}:{len(listing.classes)}"
    return Items(
        dataset=Pictures(listing, prepared.transform, count),
        name=name,
        count=count,
        labels=_labels(listing.labels, count, options),
        source=options.labels,
        collate_fn=default_collate,
        key=f"{data_key}:{prepared.key}",
        decoded_key=data_key,
        image_size=prepared.image_size,
        files=lambda: listing.paths(count),
    )


def _synthetic(kind: ModelKind, data: str, spec: WorkloadSpec, options: Options) -> Items:
    options = options._replace(labels="random")
    if kind.medium == "text":
        check_named(kind.name, data=data, mode="infer")
        opened = open_data(data, part="train", mode="infer", items=spec.items, pad_id=kind.pad_id or 0)
        size = None
    else:
        prepared = preparation(kind)
        size = prepared.image_size
        if data == "jpeg":
            from stoker.workload.data.folders import read_folder
            from stoker.workload.data.synthetic import FILES, build_jpegs

            listing = read_folder(build_jpegs(FILES)).parts["train"]
            wanted = spec.items or len(listing)
            if wanted > len(listing):
                listing = _repeated(listing, wanted)
            return _images(prepared, listing, "jpeg", spec, options)
        opened = open_data(data, part="train", mode="infer", items=spec.items, image_size=size)
    count = len(opened.dataset)
    return Items(
        dataset=opened.dataset,
        name=opened.name,
        count=count,
        labels=random_labels(count, options.classes or DEFAULT_CLASSES),
        source="random",
        collate_fn=opened.collate_fn or default_collate,
        key=None if kind.medium == "text" else f"{data}:{count}:{size}",
        image_size=size,
        files=opened.files,
    )


def _repeated(listing: Listing, items: int) -> Listing:
    """A synthetic set with its files several times over."""
    places = [place % len(listing) for place in range(items)]
    names = [listing.name(place) for place in places]
    return Listing(Path(listing.root), names, [listing.label(place) for place in places], listing.classes)


def _prepared(kind: ModelKind, data: str, spec: WorkloadSpec, options: Options) -> Items:
    size = preparation(kind).image_size
    opened = open_data(data, part="train", mode="infer", items=spec.items, image_size=size)
    _refuse_classes(options, data)
    if opened.classes < 2 and options.labels == "classes":
        raise InputError(f"{data} has one class, and nothing can be told apart: at least 2 are needed")
    count = len(opened.dataset)
    return Items(
        dataset=opened.dataset,
        name=opened.name,
        count=count,
        labels=random_labels(count, options.classes or DEFAULT_CLASSES) if options.labels == "random" else None,
        source=options.labels,
        collate_fn=default_collate,
        key=f"{Path(data).resolve()}:{count}",
        image_size=size,
        files=opened.files,
    )


def _refuse_classes(options: Options, data: str) -> None:
    if options.labels == "classes" and options.classes is not None:
        raise InputError(f"--classes chooses class folders, or counts random classes; {data} has neither")


def _of_workload(workload: Workload, spec: WorkloadSpec, options: Options) -> Items:
    """The user's own data, prepared as the user prepares them."""
    workload = calls.opened(workload)
    dataset = calls.make_dataset(workload)
    if workload.batched or workload.batch_sampler is not None:
        raise InputError(f"{workload.name} makes its own batches; a search needs a dataset of single items, in order")
    _refuse_classes(options, workload.name)
    size = None if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") else len(dataset)
    count = size if spec.items is None else spec.items if size is None else min(spec.items, size)
    name = workload.data_name or type(dataset).__name__
    files = workload.files() if callable(workload.files) else workload.files
    is_random = options.labels == "random"
    if is_random and count is None:
        raise InputError(f"{name} does not know its length, so random labels need --items")
    return Items(
        dataset=dataset,
        name=name,
        count=count,
        labels=random_labels(count or 0, options.classes or DEFAULT_CLASSES) if is_random else None,
        source=options.labels,
        collate_fn=workload.collate_fn or default_collate,
        key=f"{spec.data or spec.spec}:{count}",
        files=lambda: [Path(file) for file in files or ()],
    )


# ---------------------------------------------------------------- texts


def _texts(kind: ModelKind, folder: Path, spec: WorkloadSpec, options: Options) -> Items:
    from functools import partial

    from stoker.workload.data.text import pad_batch

    listing = read_labelled(folder, "texts", classes=options.classes if options.labels == "classes" else None)
    count = len(listing) if spec.items is None else min(spec.items, len(listing))
    return Items(
        dataset=Tokenized(listing, tokenizer_of(kind, spec), kind.max_tokens or 512, count),
        name=folder.name,
        count=count,
        labels=_labels(listing.labels, count, options),
        source=options.labels,
        collate_fn=partial(pad_batch, pad_id=kind.pad_id or 0),
        files=lambda: listing.paths(count),
    )


def tokenizer_of(kind: ModelKind, spec: WorkloadSpec) -> Any:
    """The tokenizer in the candidate's folder, or beside its weights file. Raises InputError where there is none."""
    from stoker.packages import optional

    places = [Path(kind.name.removeprefix("hf/")).expanduser()]
    if spec.weights is not None:
        places.append(Path(spec.weights).expanduser().parent)
    for place in places:
        if any((place / name).is_file() for name in TOKENIZER_FILES):
            transformers = optional("transformers", extra="hf")
            try:
                return transformers.AutoTokenizer.from_pretrained(
                    str(place), local_files_only=True, trust_remote_code=False
                )
            except Exception as error:  # of whatever kind the files' contents bring about
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise InputError(f"the tokenizer files in {place} cannot be used: {reason}") from None
    raise InputError(
        f"{kind.name} has no tokenizer files beside it, so texts cannot be read for it: put "
        f"{' or '.join(TOKENIZER_FILES[:2])} into its folder (hf/FOLDER), or beside its weights file"
    )


class Tokenized(Dataset[Any]):
    """Text files as token ids, cut to what the model takes."""

    def __init__(self, listing: Listing, tokenizer: Any, longest: int, count: int) -> None:
        self._listing, self._tokenizer, self._longest, self._count = listing, tokenizer, longest, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> Any:
        path = self._listing.path(place)
        try:
            text = read_bytes(path).decode()
        except UnicodeDecodeError:
            raise CorruptItem(f"{path} is not UTF-8 text") from None
        found = self._tokenizer(text, truncation=True, max_length=self._longest)["input_ids"]
        if not found:
            raise CorruptItem(f"{path} has no words")
        ids = torch.tensor(found, dtype=torch.int64)
        label = torch.tensor(self._listing.label(place))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": label}


# ---------------------------------------------------------------- images


class Pictures(Dataset[Any]):
    """Images and labels. `decoded` has pictures that are in memory already, by place."""

    def __init__(self, listing: Listing, transform: Callable[[Any], Any], count: int) -> None:
        self.listing, self.transform, self.count = listing, transform, count
        self.decoded: dict[int, Any] | None = None

    def __len__(self) -> int:
        return self.count

    def picture(self, place: int) -> Any:
        """The decoded image; from memory where it is there."""
        if self.decoded is not None and place in self.decoded:
            from PIL import Image

            return Image.fromarray(self.decoded[place])
        path = self.listing.path(place)
        return decode(read_bytes(path), path)

    def __getitem__(self, place: int) -> Any:
        return self.transform(self.picture(place)), self.listing.label(place)


class _Numbered(Dataset[Any]):
    """Items with their places. One that cannot be read is None; `keeps` adds the decoded picture."""

    def __init__(self, inner: Any, keeps: bool) -> None:
        self._inner, self._keeps = inner, keeps

    def __iter__(self) -> Iterator[tuple[int, Any, Any]]:
        return (self[place] for place in range(len(self._inner)))

    def __getitem__(self, place: int) -> tuple[int, Any, Any]:
        try:
            if self._keeps:
                picture = self._inner.picture(place)
                item = self._inner.transform(picture), self._inner.listing.label(place)
                return place, item, np.asarray(picture)
            return place, self._inner[place], None
        except CorruptItem:
            return place, None, None


class _Stream(IterableDataset[Any]):
    """Items of a stream with their places."""

    def __init__(self, inner: Any, count: int | None) -> None:
        self._inner, self._count = inner, count

    def __iter__(self) -> Iterator[tuple[int, Any, Any]]:
        for place, item in enumerate(self._inner):
            if self._count is not None and place >= self._count:
                return
            yield place, item, None


class Gather:
    """Makes a batch of numbered items with the set's own `collate_fn`, without those that cannot be read."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any]) -> None:
        self._collate_fn = collate_fn

    def __call__(self, numbered: list[tuple[int, Any, Any]]) -> Loaded:
        good = [each for each in numbered if each[1] is not None]
        skipped = len(numbered) - len(good)
        if not good:
            return Loaded(None, [], [], skipped, [], [])
        batch = self._collate_fn([item for _, item, _ in good])
        inputs, target = calls.split(batch)
        return Loaded(
            inputs,
            _numbers(target, len(good)),
            [place for place, _, _ in good],
            skipped,
            [place for place, _, picture in good if picture is not None],
            [picture for _, _, picture in good if picture is not None],
        )


def _numbers(target: Any, count: int) -> list[int]:
    """A batch's labels; none where the target is no class for each item."""
    if isinstance(target, torch.Tensor) and target.dim() == 1 and not target.is_floating_point():
        return [int(each) for each in target.tolist()]
    if isinstance(target, list | tuple) and len(target) == count and all(isinstance(each, int) for each in target):
        return list(target)
    return []


# ---------------------------------------------------------------- memory


@dataclass
class HostStore:
    """What earlier candidates left in host memory, within `limit_bytes`."""

    limit_bytes: int = 0
    prepared: dict[str, list[Loaded]] = field(default_factory=dict)
    decoded: dict[str, dict[int, Any]] = field(default_factory=dict)
    _bytes: dict[str, int] = field(default_factory=dict)

    @property
    def used_bytes(self) -> int:
        return sum(self._bytes.values())

    def prepared_over(self) -> None:
        """The next candidate prepares its items in another way."""
        for key in self.prepared:
            self.give_back(f"prepared {key}")
        self.prepared.clear()

    def clear(self) -> None:
        """The next candidate has other data."""
        self.prepared.clear()
        self.decoded.clear()
        self._bytes.clear()

    def take(self, what: str, count: int) -> bool:
        """Count some bytes against the limit; False where they are too many."""
        if self.used_bytes + count > self.limit_bytes:
            return False
        self._bytes[what] = self._bytes.get(what, 0) + count
        return True

    def give_back(self, what: str) -> None:
        self._bytes.pop(what, None)


class Supply:
    """Gives a candidate's batches, and keeps them for later candidates while they fit."""

    def __init__(
        self, items: Items, store: HostStore, *, keeps_prepared: bool = False, keeps_decoded: bool = False
    ) -> None:
        self.items, self._store = items, store
        kept = store.prepared.get(items.key) if items.key else None
        self._kept = kept
        self.source: ItemsSource = "prepared" if kept is not None else "files"
        dataset = items.dataset
        if kept is None and isinstance(dataset, Pictures) and items.decoded_key in store.decoded:
            dataset.decoded = store.decoded[items.decoded_key]
            self.source = "decoded"
        self._keeps_decoded = (
            keeps_decoded and kept is None and isinstance(dataset, Pictures) and self.source == "files"
        )
        self._keeps_prepared = keeps_prepared and kept is None and items.key is not None
        self._new: list[Loaded] = []
        self._pictures: dict[int, Any] = {}
        self.next_place = 0
        self.skipped = 0

    @property
    def is_stream(self) -> bool:
        return isinstance(self.items.dataset, IterableDataset) or not hasattr(self.items.dataset, "__getitem__")

    @property
    def in_memory(self) -> bool:
        """Whether no item has to be loaded."""
        return self._kept is not None

    def peek(self, size: int) -> Loaded:
        """The first items that can be read, as a batch; they are given again later."""
        if self._kept is not None:
            return _cut(self._kept, range(size))
        numbered = _Stream(self.items.dataset, None) if self.is_stream else _Numbered(self.items.dataset, False)
        good = (each for each in numbered if each[1] is not None)
        found = Gather(self.items.collate_fn)(list(itertools.islice(good, size)))
        if found.inputs is None:
            raise InputError(f"the set {self.items.name} gives no items")
        return found

    def one_by_one(self, size: int) -> Loaded | None:
        """The next `size` items, loaded in this process; None at the end."""
        count = self.items.count
        assert count is not None
        if self.next_place >= count:
            return None
        places = range(self.next_place, min(count, self.next_place + size))
        self.next_place = places.stop
        if self._kept is not None:
            return _cut(self._kept, places)
        numbered = _Numbered(self.items.dataset, self._keeps_decoded)
        return self._keep(Gather(self.items.collate_fn)([numbered[place] for place in places]))

    def batches(self, size: int, workers: int, *, pinned: bool, prefetch: int = 2) -> Iterator[Loaded]:
        """All items from `next_place` on, in batches of `size`, loaded by so many workers."""
        if not self.is_stream and (self._kept is not None or not workers):
            while (loaded := self.one_by_one(size)) is not None:
                yield _pinned(loaded) if pinned else loaded
            return
        options: dict[str, Any] = {"num_workers": workers, "pin_memory": pinned, "batch_size": size}
        if workers:
            options["prefetch_factor"] = prefetch
        if self.is_stream:
            dataset: Any = _Stream(self.items.dataset, self.items.count)
        else:
            dataset = _Numbered(self.items.dataset, self._keeps_decoded)
            options["sampler"] = range(self.next_place, self.items.count or 0)
        for loaded in DataLoader(dataset, collate_fn=Gather(self.items.collate_fn), **options):
            self.next_place += len(loaded.places) + loaded.skipped
            yield self._keep(Loaded(*loaded))

    def finish(self) -> None:
        """All items were given: what was kept of them is there for later candidates."""
        if self._keeps_prepared and self.items.key:
            self._store.prepared[self.items.key] = self._new
        if self._keeps_decoded and self.items.decoded_key:
            self._store.decoded[self.items.decoded_key] = self._pictures

    def abandon(self) -> None:
        """The candidate ended before all items were given: a part of them is of no use."""
        if self._keeps_prepared:
            self._store.give_back(f"prepared {self.items.key}")
        if self._keeps_decoded:
            self._store.give_back(f"decoded {self.items.decoded_key}")
        self._keeps_prepared = self._keeps_decoded = False
        self._new, self._pictures = [], {}

    def _keep(self, loaded: Loaded) -> Loaded:
        if self._keeps_decoded and loaded.pictures:
            size = sum(picture.nbytes for picture in loaded.pictures)
            if self._store.take(f"decoded {self.items.decoded_key}", size):
                self._pictures.update(zip(loaded.decoded, loaded.pictures, strict=True))
            else:
                self._store.give_back(f"decoded {self.items.decoded_key}")
                self._keeps_decoded, self._pictures = False, {}
        loaded = loaded._replace(decoded=[], pictures=[])
        if self._keeps_prepared:
            fits = isinstance(loaded.inputs, torch.Tensor | None) and self._store.take(
                f"prepared {self.items.key}", 0 if loaded.inputs is None else loaded.inputs.nbytes
            )
            if fits:
                self._new.append(loaded)
            else:
                self._store.give_back(f"prepared {self.items.key}")
                self._keeps_prepared, self._new = False, []
        return loaded


def _cut(kept: Sequence[Loaded], places: range) -> Loaded:
    """The items at some places out of kept batches, which are in order."""
    inputs, labels, found, skipped = [], [], [], len(places)
    for batch in kept:
        if not batch.places or batch.places[-1] < places.start or batch.places[0] >= places.stop:
            continue
        rows = [row for row, place in enumerate(batch.places) if place in places]
        if rows:
            inputs.append(batch.inputs[rows[0] : rows[-1] + 1])
            labels += [batch.labels[row] for row in rows] if batch.labels else []
            found += [batch.places[row] for row in rows]
    if not inputs:
        return Loaded(None, [], [], skipped, [], [])
    joined = inputs[0] if len(inputs) == 1 else torch.cat(inputs)
    return Loaded(joined, labels, found, skipped - len(found), [], [])


def _pinned(loaded: Loaded) -> Loaded:
    return loaded._replace(inputs=loaded.inputs.pin_memory()) if isinstance(loaded.inputs, torch.Tensor) else loaded


def place_files(items: Items, source: str, files: Sequence[Path]) -> None:
    """Bring the files of a trial into the page cache, or evict them from it, as its extent says."""
    listed = [*items.files(), *files]
    if source == "cached":
        pagecache.warm(listed)
    elif source == "cold":
        pagecache.evict(listed)


def fork_s() -> float:
    """How long it takes to fork this process: what starting a worker costs at least."""
    import os

    began = perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return perf_counter() - began
