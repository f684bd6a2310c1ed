"""Grids: what they ask for, in which order, and what is wrong with them, by line."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import InputError
from stoker.studies.grid import Grid, grid_from, order, parse_grid, parse_only, read_grid, selected, task_of

WHOLE = """\
name = "mine"
seed = 3
repeats = 2
timeout = "10min"

[fixed]
mode = "infer"
items = 64

[axes]
workload = ["resnet18", "vit_b_16"]
batch_size = [8, 16]
num_workers = [0, 1]

[[exclude]]
workload = "vit_b_16"
batch_size = 16

[[include]]
workload = "resnet50"
batch_size = 4
"""


def parsed(text: str) -> Grid:
    return parse_grid(text, "grid.toml")


def test_a_grid_is_its_products_less_what_is_excluded_and_what_is_included() -> None:
    grid = parsed(WHOLE)
    assert (grid.name, grid.seed, grid.repeats, grid.timeout_s) == ("mine", 3, 2, 600.0)
    cells = [(cell["workload"], cell["batch_size"], cell.get("num_workers")) for cell in grid.cells()]
    assert cells == [
        ("resnet18", 8, 0),
        ("resnet18", 8, 1),
        ("resnet18", 16, 0),
        ("resnet18", 16, 1),
        ("vit_b_16", 8, 0),
        ("vit_b_16", 8, 1),
        ("resnet50", 4, None),
    ]
    assert all(cell["items"] == 64 and cell["mode"] == "infer" for cell in grid.cells())
    assert len(grid.tasks()) == 7


def test_items_are_one_pass_over_so_many_items() -> None:
    task = task_of({"workload": "resnet18", "items": 64, "batch_size": 8}, "profile")
    assert task.workload is not None
    assert task.workload.items == 64
    assert (task.extent.batches, task.extent.warmup, task.extent.epochs) == (None, 0, 1)


def test_cells_that_ask_for_the_same_thing_are_one_task() -> None:
    text = '[axes]\nworkload = ["resnet18"]\nnum_workers = [0, 1]\nprefetch_factor = [2, 4]\n'
    assert len(parsed(text).cells()) == 4
    assert len(parsed(text).tasks()) == 3


def test_several_tables_of_axes_add_up() -> None:
    text = '[fixed]\nworkload = "resnet18"\n[[axes]]\nbatches = [11]\nbatch_size = [8]\n'
    text += "[[axes]]\nitems = [64]\nbatch_size = [8, 16]\n"
    assert [(cell.get("batches"), cell.get("items"), cell["batch_size"]) for cell in parsed(text).cells()] == [
        (11, None, 8),
        (None, 64, 8),
        (None, 64, 16),
    ]


def test_a_family_is_no_part_of_the_task() -> None:
    text = '[fixed]\nworkload = "resnet18"\n[axes]\nfamily = ["cnn", "net"]\n'
    assert len(parsed(text).cells()) == 2
    assert len(parsed(text).tasks()) == 1


@pytest.mark.parametrize("kind", ["limit", "tune"])
def test_other_kinds_have_options(kind: str) -> None:
    text = f'kind = "{kind}"\n[fixed]\nworkload = "resnet18"\n[axes]\ngpu_memory = ["8GiB", "16GiB"]\n'
    tasks = list(parsed(text).tasks().values())
    assert [asked.task.options for asked in tasks] == [{"gpu_memory": "8GiB"}, {"gpu_memory": "16GiB"}]
    assert {asked.task.kind for asked in tasks} == {kind}


def test_a_candidate_of_a_search_has_its_options_and_its_batches_are_items() -> None:
    text = 'kind = "search"\n[fixed]\nlabels = "random"\nscores = "linear"\nwarmup = 1\n'
    text += '[axes]\nworkload = ["resnet18"]\npart = ["full", "joint:2:last:3"]\nbatches = [50]\nbatch_size = [32]\n'
    first, second = (asked.task for asked in parsed(text).tasks().values())
    assert first.kind == "search"
    assert first.options == {"labels": "random", "scores": "linear", "part": "full"}
    assert first.workload is not None
    assert first.workload.items == 1600
    assert (first.setting.batch_size, first.extent.warmup, first.extent.batches) == (32, 1, None)
    assert second.options["part"] == "joint:2:last:3"
    assert first.key() != second.key()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('part = ["last:0"]', r"line 4: part: a part must have at least 1 of the blocks, got 0 in 'last:0'"),
        ('part = ["half"]', "line 4: part: a part must be full, last:50%"),
        ('scores = ["logmee"]', r"line 4: scores: there is no score 'logmee' \(did you mean logme"),
        ("classes = [1]", "line 4: classes must be at least 2, got 1"),
        ('labels = ["none"]', "line 4: labels must be one of classes, random, got 'none'"),
        ('weights_cache = ["hot"]', "line 4: weights_cache must be one of warm, cold, got 'hot'"),
        ("precision = ['bf16']", "line 4: a study of kind search has no axis precision"),
    ],
)
def test_what_is_wrong_with_a_search_is_one_sentence_with_its_line(line: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        parsed(f'kind = "search"\n[axes]\nworkload = ["resnet18"]\n{line}\n')


def test_a_key_does_not_depend_on_how_the_grid_is_written() -> None:
    other = '[axes]\nbatch_size = [16, 8]\nworkload = ["resnet18"]\n[fixed]\nprecision = "fp32"\n'
    assert set(parsed(other).tasks()) == set(parsed('[axes]\nworkload = ["resnet18"]\nbatch_size = [8, 16]\n').tasks())


def test_the_content_of_a_users_file_is_part_of_the_key(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def workload(): ...\n")
    grid = grid_from({"axes": {"workload": [f"{file}:workload"]}})
    before = set(grid.tasks())
    file.write_text("def workload(): return 1\n")
    assert set(grid.tasks()).isdisjoint(before)


# ---------------------------------------------------------------- order


def test_the_order_is_shuffled_by_the_seed_and_whole_repeats_come_one_after_another() -> None:
    keys = [f"key{number}" for number in range(20)]
    slots = list(order(keys, 1, 3))
    assert [repeat for _, repeat in slots] == [0] * 20 + [1] * 20 + [2] * 20
    rounds = [[key for key, repeat in slots if repeat == each] for each in range(3)]
    assert all(sorted(each) == sorted(keys) for each in rounds)
    assert len({tuple(each) for each in [*rounds, sorted(keys)]}) == 4
    assert slots == list(order(reversed(keys), 1, 3))
    assert slots != list(order(keys, 2, 3))


@settings(deadline=None)
@given(st.sets(st.text(min_size=1), max_size=30), st.integers(0, 99), st.integers(1, 4))
def test_every_slot_is_there_once_whatever_the_seed(keys: set[str], seed: int, repeats: int) -> None:
    slots = list(order(keys, seed, repeats))
    assert sorted(slots) == sorted((key, repeat) for key in keys for repeat in range(repeats))


# ---------------------------------------------------------------- mistakes

BASE = """\
name = "x"

[fixed]
mode = "infer"
items = 64

[axes]
workload = ["resnet18"]
batch_size = [8, 16]
"""


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("batch_size", "batch_sise", r"line 9: .* kind profile has no axis batch_sise \(did you mean batch_size"),
        ("[8, 16]", "[]", "line 9: axis batch_size is empty"),
        ("[8, 16]", "8", r"line 9: an axis is a list, got 8; write batch_size = \[8\]"),
        ("[8, 16]", '["8"]', "line 9: batch_size must be a whole number, got '8'"),
        ("[8, 16]", "[0, 8]", "line 9: batch size must be at least 1, got 0"),
        ("[8, 16]", "[8, 8]", "line 9: axis batch_size has a value twice"),
        ('"infer"', '"infre"', r"line 4: mode must be one of train, infer, got 'infre' \(did you mean infer"),
        ("items = 64", "items = 0", "line 5: items must be at least 1, got 0"),
        ("items = 64", "items = 64\nbatches = 3", "line 6: items and batches both say"),
        ("items = 64", "batch_size = 3", "line 9: batch_size is both fixed and an axis"),
        ('"resnet18"', '"nofile.py:workload"', "line 8: cannot read nofile.py"),
        ('"resnet18"', '"train.py:f"]\ndata = ["jpeg"', "line 9: data goes with a model's name; train.py:f"),
        ("items = 64", 'source = "cold"\ndata = "device"', "line 5: source cold needs files, and data that is made on"),
        ("items = 64", 'validate = true\ndevice = "sleep:1s"', "line 5: validate scores a model, and sleep:1s"),
        ("[axes]", "[axis]", r"line 7: a grid has no axis \(did you mean axes"),
        ('name = "x"', 'nam = "x"', r"line 1: a grid has no nam \(did you mean name"),
        ('name = "x"', "name = 3", "line 1: name must be a printable text"),
        ('name = "x"', "repeats = 0", "line 1: repeats must be at least 1, got 0"),
        ('name = "x"', 'repeats = "3"', "line 1: repeats must be a whole number, got '3'"),
        ('name = "x"', 'timeout = "3 lightyears"', "line 1: timeout must be a time like 10min"),
        ('name = "x"', "timeout = 0", "line 1: timeout must be above 0 s"),
        ('name = "x"', 'kind = "limmit"', r"line 1: no such kind: 'limmit' \(did you mean limit"),
        ('name = "x"', 'kind = "limit"', "line 9: a study of kind limit has no axis batch_size"),
        ("[8, 16]", "[8, 16]\nbatch_size = [3]", "line 10: this is not TOML: cannot overwrite a value"),
        ("[8, 16]", "[8, 16", "this is not TOML"),
        ("[8, 16]", "[8, 16]\n[[exclude]]\nbatch_size = 9", "line 11: axis batch_size has no value 9; it has 8, 16"),
        ("[8, 16]", "[8, 16]\n[[exclude]]\nitems = 64", "line 11: items is not an axis of this grid"),
        ("[8, 16]", "[8, 16]\n[[exclude]]", "line 10: an empty .* would leave out everything"),
        ("[8, 16]", "[8]\n[[exclude]]\nbatch_size = 8", "line 10: every task of the grid is excluded"),
        ("[8, 16]", "[8]\n[include]\nbatch_size = 8", r"line 10: write \[\[include\]\] with two brackets"),
        ("[8, 16]", "[8]\n[[include]]\nbatch_size = 4\n[[include]]\nbatch_size = '4'", "line 13: batch_size must be a"),
        ("[8, 16]", "[8]\n[[axes]]", "this is not TOML"),
        ('workload = ["resnet18"]\n', "", "no workload: name one in"),
        ('workload = ["resnet18"]\nbatch_size = [8, 16]\n', "", "the grid has no axes: give at least one"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_with_its_line(before: str, after: str, sentence: str) -> None:
    assert before in BASE
    with pytest.raises(InputError, match=sentence) as found:
        parsed(BASE.replace(before, after, 1))
    assert str(found.value).startswith("grid.toml")
    assert "\n" not in str(found.value)


def test_a_name_of_another_kind_is_pointed_to() -> None:
    with pytest.raises(InputError, match=r"no axis gpu_memory.*kind limit and tune have it"):
        parsed(BASE.replace("items = 64", 'gpu_memory = "16GiB"'))


def test_a_time_limit_goes_with_profiles() -> None:
    text = 'kind = "limit"\ntimeout = "1min"\n[axes]\nworkload = ["resnet18"]\n'
    with pytest.raises(InputError, match="line 2: timeout goes with kind profile"):
        parsed(text)


def test_a_grid_that_is_too_large_is_refused_before_it_is_made() -> None:
    values = ", ".join(map(str, range(1, 1002)))
    text = f'[fixed]\nworkload = "resnet18"\n[axes]\nbatch_size = [{values}]\nnum_workers = [{values}]\n'
    with pytest.raises(InputError, match=r"line 3: the grid asks for 1,002,001 tasks, and 1,000,000 are the most"):
        parsed(text)


def test_dotted_keys_have_lines_too() -> None:
    with pytest.raises(InputError, match="line 2: a study of kind profile has no axis batch_sise"):
        parsed('fixed.workload = "resnet18"\naxes.batch_sise = [1]\n')


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=200))
def test_any_text_is_a_grid_or_one_sentence(text: str) -> None:
    with suppress(InputError):
        parsed(text)


def test_a_file_that_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="it is not UTF-8 text"):
        read_grid(file)
    with pytest.raises(InputError, match="No such file"):
        read_grid(tmp_path / "none.toml")


def test_a_file_without_a_name_is_called_like_itself(tmp_path: Path) -> None:
    file = tmp_path / "night.toml"
    file.write_text('[axes]\nworkload = ["resnet18"]\n')
    assert read_grid(file).name == "night"


# ---------------------------------------------------------------- --only


def test_only_selects_by_value() -> None:
    grid = parsed(WHOLE)

    def chosen(*texts: str) -> int:
        wanted = parse_only(texts, grid)
        return sum(1 for asked in grid.tasks().values() if selected(asked.values, wanted))

    assert chosen() == 7
    assert chosen("batch_size=8") == 4
    assert chosen("batch_size=8,4") == chosen("batch_size=8", "batch_size=4") == 5
    assert chosen("batch_size=8", "workload=VIT_B_16") == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("batch_size", "selects nothing; write it like num_workers=8"),
        ("batchsize=8", r"this grid has no 'batchsize' \(did you mean batch_size\?\); it has .*batch_size"),
        ("batch_size=9", "batch_size is never '9' in this grid; it is 16, 4, 8"),
    ],
)
def test_only_refuses_what_the_grid_has_not(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        parse_only([text], parsed(WHOLE))
