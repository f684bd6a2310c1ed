"""DataLoader objects in place of a dataset: those of torch and of the libraries that people use."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from stoker.errors import InputError
from stoker.workload import calls
from stoker.workload.loaders import DeviceTransform, first_items, is_loader
from stoker.workload.workload import Workload

ROWS = TensorDataset(torch.rand(40, 3), torch.arange(40) % 2)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for _ in range(6):
            yield torch.zeros(5, 3), torch.zeros(5, dtype=torch.long)


def gather(items: list[Any]) -> Any:
    return torch.stack([row for row, _ in items]), torch.stack([label for _, label in items])


def set_up(worker: int) -> None:
    torch.set_num_threads(1)


def workload(**parts: Any) -> Workload:
    return Workload(**{"model": nn.Linear(3, 2), **parts})


@pytest.mark.parametrize("name", ["dataset", "loader"])
def test_a_loader_gives_its_dataset_functions_order_and_setting(name: str) -> None:
    loader = DataLoader(
        ROWS,
        batch_size=7,
        shuffle=True,
        num_workers=2,
        prefetch_factor=3,
        persistent_workers=True,
        collate_fn=gather,
        worker_init_fn=set_up,
        drop_last=True,
    )
    made = workload(**{name: loader})
    assert made.dataset is ROWS
    assert made.loader is None
    assert made.collate_fn is gather
    assert made.worker_init_fn is set_up
    assert (made.shuffle, made.drop_last, made.sampler, made.batching) == (True, True, None, "size")
    assert made.current is not None
    assert (made.current.batch_size, made.current.num_workers, made.current.prefetch_factor) == (7, 2, 3)
    assert made.current.persistent_workers
    assert made.current.pin_memory is False
    assert made.with_(name="again").current == made.current


def test_a_function_may_make_the_loader() -> None:
    made = calls.opened(workload(loader=lambda: DataLoader(ROWS, batch_size=5)))
    assert made.dataset is ROWS
    assert made.current is not None
    assert made.current.batch_size == 5
    assert made.shuffle is False


def test_parts_beside_the_loader_win() -> None:
    loader = DataLoader(ROWS, batch_size=4, collate_fn=gather, sampler=RandomSampler(ROWS))
    sampler = SequentialSampler(ROWS)
    made = workload(loader=loader, collate_fn=torch.utils.data.default_collate, sampler=sampler)
    assert made.collate_fn is torch.utils.data.default_collate
    assert made.sampler is sampler
    assert made.shuffle is None


def test_samplers_that_are_no_plain_order_are_kept() -> None:
    weighted = WeightedRandomSampler([1.0] * 40, 20)
    assert workload(loader=DataLoader(ROWS, batch_size=4, sampler=weighted)).sampler is weighted
    repeated = RandomSampler(ROWS, replacement=True, num_samples=100)
    assert workload(loader=DataLoader(ROWS, batch_size=4, sampler=repeated)).sampler is repeated


class Buckets(BatchSampler):
    """A batch sampler of a class of its own."""


def test_a_batch_sampler_of_its_own_sets_the_batches() -> None:
    buckets = Buckets(SequentialSampler(ROWS), 8, drop_last=False)
    made = workload(loader=DataLoader(ROWS, batch_sampler=buckets))
    assert made.batch_sampler is buckets
    assert made.sets_batches
    assert made.current is not None
    assert made.current.batch_size == 8


def test_without_a_batch_size_the_dataset_gives_batches() -> None:
    made = workload(loader=DataLoader(Stream(), batch_size=None, num_workers=1))
    assert (made.batched, made.batching, made.collate_fn) == (True, "dataset", None)


def test_validation_may_be_a_loader() -> None:
    made = workload(dataset=ROWS, validation=DataLoader(ROWS, batch_size=4, collate_fn=gather))
    assert made.validation is ROWS
    assert made.collate_fn is gather


def test_a_dataset_and_a_loader_are_one_too_many() -> None:
    with pytest.raises(InputError, match="a dataset or a loader, not both"):
        workload(dataset=ROWS, loader=DataLoader(ROWS))


def test_the_first_items_of_a_loader() -> None:
    few = first_items(DataLoader(ROWS, batch_size=4, shuffle=True, collate_fn=gather), 10)
    assert sorted(len(label) for _, label in few) == [2, 4, 4]
    assert isinstance(few.sampler, RandomSampler)
    with pytest.raises(InputError, match="its own sampler"):
        first_items(DataLoader(ROWS, batch_size=4, sampler=WeightedRandomSampler([1.0] * 40, 20)), 10)


def test_a_batch_sampler_may_be_a_function_of_the_size() -> None:
    made = workload(dataset=ROWS, batch_sampler=lambda size: BatchSampler(SequentialSampler(ROWS), size, False))
    assert (made.batching, made.sets_batches) == ("function", False)
    assert len(calls.make_batch_sampler(made, 8)) == 5
    with pytest.raises(InputError, match="must give a batch sampler"):
        calls.make_batch_sampler(workload(dataset=ROWS, batch_sampler=lambda size: size), 8)


# ---------------------------------------------------------------- the libraries' own


def test_timm_without_and_with_its_prefetcher(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm.data")
    pil = pytest.importorskip("PIL.Image")
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for index in range(3):
            pil.new("RGB", (40, 40)).save(tmp_path / label / f"{index}.jpg")
    dataset = timm.create_dataset("", root=str(tmp_path))
    options = {"input_size": (3, 32, 32), "batch_size": 2, "num_workers": 1, "is_training": True, "re_prob": 0.0}
    plain = timm.create_loader(dataset, use_prefetcher=False, **options)
    made = workload(loader=plain)
    assert made.dataset is dataset
    assert made.current is not None
    assert made.current.batch_size == 2
    assert (made.batching, made.shuffle, made.drop_last) == ("size", True, True)
    repeating = timm.create_loader(dataset, use_prefetcher=False, use_multi_epochs_loader=True, **options)
    assert workload(loader=repeating).batching == "size", "its endless batch sampler is not taken for one of its own"
    prefetching = timm.create_loader(dataset, use_prefetcher=True, device=torch.device("cpu"), **options)
    assert is_loader(prefetching)
    made = workload(loader=prefetching)
    assert isinstance(made.forward, DeviceTransform)
    assert made.collate_fn is not None
    images, _ = made.collate_fn([dataset[0], dataset[1]])
    given = next(iter(prefetching))[0]
    got = calls.forward(made, nn.Identity().eval(), images)
    assert (got.dtype, got.shape) == (given.dtype, given.shape)
    assert images.dtype == torch.uint8, "the batch itself is left alone"
    assert torch.allclose(got.amin(), given.amin(), atol=1e-3)


def test_accelerate_wraps_a_loader() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    prepared = accelerator.prepare(DataLoader(ROWS, batch_size=5, shuffle=True, num_workers=1, collate_fn=gather))
    made = workload(loader=prepared)
    assert made.dataset is ROWS
    assert made.collate_fn is gather
    assert made.current is not None
    assert (made.current.batch_size, made.current.num_workers, made.shuffle) == (5, 1, True)


def test_pytorch_geometric_gives_batches_of_graphs() -> None:
    data = pytest.importorskip("torch_geometric.data")
    geometric = pytest.importorskip("torch_geometric.loader")
    graphs = [
        data.Data(x=torch.rand(4 + index, 3), edge_index=torch.randint(0, 4, (2, 6)), y=torch.tensor([index % 2]))
        for index in range(10)
    ]
    made = workload(loader=geometric.DataLoader(graphs, batch_size=5))
    assert made.current is not None
    assert made.current.batch_size == 5
    assert made.collate_fn is not None
    batch = made.collate_fn(graphs[:5])
    assert calls.count_items(batch) == 5
    assert calls.batch_bytes(batch) > sum(graph.x.nbytes for graph in graphs[:5])
    inputs, target = calls.split(batch)
    assert inputs is batch
    assert target.shape == (5,)
    assert calls.to_device(batch, "meta").x.device.type == "meta"
    assert batch.x.device.type == "cpu", "the original is left alone"


class Neighbours(DataLoader[Any]):
    """Samples in `collate_fn` and fetches features in the loop's process, as PyTorch Geometric's do."""

    filter_per_worker = False

    def filter_fn(self, nodes: list[int]) -> torch.Tensor:
        return torch.zeros(len(nodes), 3)


def test_what_a_loader_does_after_collating_is_not_lost() -> None:
    made = workload(loader=Neighbours(range(12), batch_size=4, collate_fn=list))  # type: ignore[arg-type]
    assert made.collate_fn is not None
    assert made.collate_fn([1, 2, 3]).shape == (3, 3)


def test_lightning_train_dataloader() -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningDataModule):  # type: ignore[misc, name-defined]
        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(ROWS, batch_size=6, shuffle=True)

    made = calls.opened(workload(loader=Module().train_dataloader))
    assert made.dataset is ROWS
    assert made.current is not None
    assert made.current.batch_size == 6


# ---------------------------------------------------------------- mode


def training_step(model: Any, batch: Any) -> None:
    model(batch[0]).sum().backward()


@pytest.mark.parametrize(
    ("parts", "mode", "why"),
    [
        ({}, "infer", "no loss, no optimizer"),
        ({"loss": nn.CrossEntropyLoss()}, "train", "it has a loss"),
        ({"optimizer": torch.optim.AdamW}, "train", "it has an optimizer"),
        ({"step": training_step}, "train", "its step calls backward"),
        ({"step": lambda model, batch: model(batch[0])}, "infer", "no loss, no optimizer"),
    ],
)
def test_the_mode_and_why(parts: dict[str, Any], mode: str, why: str) -> None:
    assert workload(dataset=ROWS, **parts).mode_choice() == (mode, why)
    assert workload(dataset=ROWS, **parts).mode_choice("infer") == ("infer", "as asked")


def test_a_map_of_batches_is_a_dataset_too() -> None:
    class Batches(Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(4, 3)

        def __len__(self) -> int:
            return 5

    made = workload(loader=DataLoader(Batches(), batch_size=None))
    assert (made.batched, made.shuffle) == (True, False)


def test_webdataset_gives_batches_where_its_pipeline_ends_so(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "shard.tar")) as sink:
        for number in range(6):
            sink.write({"__key__": f"{number}", "cls": number})
    items = webdataset.WebDataset(str(tmp_path / "shard.tar"), shardshuffle=False).decode().to_tuple("cls")
    assert not calls.opened(workload(dataset=items)).batched
    batches = items.batched(3)
    assert calls.opened(workload(dataset=lambda: batches)).batched
    assert not calls.opened(workload(dataset=batches.unbatched())).batched
    loader = webdataset.WebLoader(batches, batch_size=None, num_workers=1)
    assert is_loader(loader)
    made = workload(loader=loader)
    assert (made.batched, made.dataset) == (True, batches)
    assert made.current is not None
    assert made.current.num_workers == 1
    with pytest.raises(InputError, match=r"stages behind its loader \(unbatched, batched\)"):
        workload(loader=webdataset.WebLoader(batches, batch_size=None).unbatched().batched(2))
