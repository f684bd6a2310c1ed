"""What a folder of class folders is taken for."""

import pickle
from pathlib import Path

import pytest

from stoker.errors import InputError
from stoker.workload.data.folders import Listing, read_folder


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(listing: Listing) -> list[str]:
    return [listing.name(index) for index in range(len(listing))]


def test_classes_take_turns_so_that_the_first_few_have_them_all(tmp_path: Path) -> None:
    touch(tmp_path, "train/cat/2.jpg", "train/cat/1.jpg", "train/cat/3.jpg", "train/dog/1.jpg", "val/cat/9.jpg")
    train = read_folder(tmp_path).parts["train"]
    assert names(train) == ["cat/1.jpg", "dog/1.jpg", "cat/2.jpg", "cat/3.jpg"]
    assert train.labels.tolist() == [0, 1, 0, 0]
    assert train.classes == ("cat", "dog")
    assert train.paths(2) == [tmp_path / "train/cat/1.jpg", tmp_path / "train/dog/1.jpg"]


@pytest.mark.parametrize("folder", ["val", "valid", "validation", "test", "Val"])
def test_the_validation_part_has_many_names(tmp_path: Path, folder: str) -> None:
    touch(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg", f"{folder}/dog/2.jpg")
    parts = read_folder(tmp_path).parts
    assert names(parts["validation"]) == ["dog/2.jpg"]
    assert parts["validation"].labels.tolist() == [1]


def test_without_a_validation_part_one_in_ten_of_each_class_is_held_out(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{own}/{number:02d}.jpg" for own in ("cat", "dog") for number in range(20)), "rare/1.jpg")
    parts = read_folder(tmp_path).parts
    assert sorted(names(parts["validation"])) == ["cat/09.jpg", "cat/19.jpg", "dog/09.jpg", "dog/19.jpg"]
    assert len(parts["train"]) == 37
    assert not set(names(parts["train"])) & set(names(parts["validation"]))


def test_a_small_class_gives_one_file_to_validate_on(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.jpg", "cat/2.jpg", "cat/3.jpg")
    parts = read_folder(tmp_path).parts
    assert names(parts["train"]) == ["cat/1.jpg", "cat/2.jpg"]
    assert names(parts["validation"]) == ["cat/3.jpg"]


def test_endings_in_any_case_count_and_hidden_and_other_files_do_not(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.JPEG", "cat/2.Png", "cat/.3.jpg", "cat/notes.txt", ".cache/4.jpg", "cat/more/5.webp")
    parts = read_folder(tmp_path).parts
    assert sorted(names(parts["train"]) + names(parts["validation"])) == ["cat/1.JPEG", "cat/2.Png", "cat/more/5.webp"]


def test_a_flat_folder_is_one_class(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{number}.jpg" for number in range(10)))
    folder = read_folder(tmp_path)
    assert folder.flat
    assert folder.parts["train"].classes == ("all",)
    assert len(folder.parts["train"]) == 9


def test_videos_are_told_from_images(tmp_path: Path) -> None:
    touch(tmp_path, "Archery/v_1.avi", "Archery/v_2.avi", "Bowling/v_1.mp4", "Archery/cover.jpg")
    folder = read_folder(tmp_path)
    assert folder.media == "videos"
    assert names(folder.parts["train"]) == ["Archery/v_1.avi", "Bowling/v_1.mp4"]


def test_an_empty_folder_says_what_was_expected(tmp_path: Path) -> None:
    touch(tmp_path, "cat/notes.txt")
    with pytest.raises(InputError, match=f"{tmp_path} has no images or videos; expected class folders"):
        read_folder(tmp_path)


def test_a_class_that_train_lacks_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "train/cat/1.jpg", "val/emu/1.jpg")
    with pytest.raises(InputError, match=r"has classes that .*train has not: emu"):
        read_folder(tmp_path)


def test_a_validation_part_without_classes_is_told_when_it_is_wanted(tmp_path: Path) -> None:
    touch(tmp_path, "train/cat/1.jpg", "val/1.jpg")
    assert len(read_folder(tmp_path, parts=("train",)).parts["train"]) == 1
    with pytest.raises(InputError, match=r"val has no class folders, but .*train has: sort its files"):
        read_folder(tmp_path)


def test_what_is_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere is not a folder"):
        read_folder(tmp_path / "nowhere")


def test_a_listing_keeps_any_name_and_travels_light(tmp_path: Path) -> None:
    odd = ["cat/ä ö.jpg", "cat/\udcff.jpg"]  # the second is a byte that is no UTF-8, as Python shows it
    listing = pickle.loads(pickle.dumps(Listing(tmp_path, odd, [0, 0], ["cat"])))
    assert names(listing) == odd
    many = Listing(tmp_path, [f"cat/{number:06d}.jpg" for number in range(10_000)], [0] * 10_000, ["cat"])
    assert len(pickle.dumps(many)) < 10_000 * 30
