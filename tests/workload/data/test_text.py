"""Synthetic texts of varied length, and the batches they make."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from stoker.marks import Recorder, record_into
from stoker.workload.data.open import OpenedData, open_data
from stoker.workload.data.text import CLASSES, FIRST_ID, LONGEST, SHORTEST, VOCABULARY, pad_batch


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sets")


def opened(root: Path, **changes: Any) -> OpenedData:
    return open_data("text", **{"part": "train", "mode": "infer", "root": root, "files": 400, **changes})


def test_lengths_vary_and_ids_fit_common_vocabularies(root: Path) -> None:
    dataset = opened(root).dataset
    lengths = torch.tensor([len(dataset[index]["input_ids"]) for index in range(len(dataset))])
    assert lengths.min() >= SHORTEST
    assert lengths.max() <= LONGEST
    assert 110 < lengths.float().mean() < 145
    assert lengths.float().std() > 40
    ids = torch.cat([dataset[index]["input_ids"] for index in range(len(dataset))])
    assert ids.min() >= FIRST_ID
    assert ids.max() < VOCABULARY


def test_an_item_has_ids_a_mask_and_a_label(root: Path) -> None:
    item = opened(root).dataset[6]
    assert sorted(item) == ["attention_mask", "input_ids", "labels"]
    assert item["attention_mask"].shape == item["input_ids"].shape
    assert item["attention_mask"].all()
    assert item["labels"] == 6 % CLASSES
    assert all(values.dtype == torch.int64 for values in item.values())


def test_a_batch_is_filled_up_to_its_longest(root: Path) -> None:
    data = opened(root, pad_id=1, items=8)
    batch = next(iter(DataLoader(data.dataset, batch_size=8, num_workers=1, collate_fn=data.collate_fn)))
    lengths = [len(data.dataset[index]["input_ids"]) for index in range(8)]
    assert batch["input_ids"].shape == (8, max(lengths))
    assert batch["attention_mask"].sum(1).tolist() == lengths
    assert (batch["input_ids"][batch["attention_mask"] == 0] == 1).all()
    assert batch["labels"].tolist() == [0, 1, 2, 3] * 2


def test_padding_is_zero_where_nothing_is_said() -> None:
    short, long = (
        {"input_ids": torch.full((n,), 9), "attention_mask": torch.ones(n), "labels": torch.tensor(0)} for n in (1, 3)
    )
    assert pad_batch([short, long])["input_ids"].tolist() == [[9, 0, 0], [9, 9, 9]]
    assert partial(pad_batch, pad_id=1)([short, long])["input_ids"][0].tolist() == [9, 1, 1]


def test_reading_is_marked_and_the_file_is_told(root: Path) -> None:
    data = opened(root)
    recorder = Recorder()
    record_into(recorder)
    try:
        data.dataset[0]
    finally:
        record_into(None)
    assert set(recorder.take()) == {"read", "decode"}
    assert [path.name for path in data.files()] == ["train-ids.npy"]


def test_parts_differ_and_the_set_repeats(root: Path) -> None:
    train, validation = opened(root, items=900).dataset, opened(root, part="validation").dataset
    assert (len(train), len(validation)) == (900, 40)
    assert torch.equal(train[1]["input_ids"], train[401]["input_ids"])
    assert not torch.equal(train[1]["input_ids"][:8], validation[1]["input_ids"][:8])


def test_the_classes_can_be_learned(root: Path) -> None:
    """Counting which class uses a word most is enough to beat one in four by far."""
    counts = torch.ones(CLASSES, VOCABULARY)
    for item in opened(root).dataset:
        counts[item["labels"]] += torch.bincount(item["input_ids"], minlength=VOCABULARY)
    odds = (counts / counts.sum(1, keepdim=True)).log()
    new = opened(root, part="validation").dataset
    right = [odds[:, item["input_ids"]].sum(1).argmax() == item["labels"] for item in new]
    assert sum(map(float, right)) / len(right) > 0.6
