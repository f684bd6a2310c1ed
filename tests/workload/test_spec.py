"""Workloads by name: the user's own functions, and models with their data."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from stoker.errors import InputError
from stoker.workload import calls
from stoker.workload.data import open as data_room
from stoker.workload.spec import bounded, load
from stoker.workload.workload import Workload

WORKLOADS = Path(__file__).parents[1] / "workloads"
SMALL, OWN_STEP = WORKLOADS / "small.py", WORKLOADS / "own_step.py"

HEADER = "from stoker.workload.workload import Workload\n"


@pytest.fixture(autouse=True)
def imports_restored() -> Iterator[None]:
    path, modules = list(sys.path), dict(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        if getattr(sys.modules[name], "__file__", None) and _is_of_a_test(name):
            del sys.modules[name]


def _is_of_a_test(name: str) -> bool:
    file = str(sys.modules[name].__file__)
    return file.startswith((str(WORKLOADS), "/tmp/pytest"))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEADER + text)
    return path


def one_sentence(spec: str, sentence: str, **options: Any) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        load(spec, **options)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- a function of one's own


def test_a_function_in_a_file_gives_its_workload() -> None:
    workload = load(f"{SMALL}:workload")
    assert workload.name == f"{SMALL}:workload"
    assert workload.default_mode() == "train"
    assert len(calls.make_dataset(workload)) == 64
    assert load(f"{SMALL}:inference").default_mode() == "infer"
    assert load(f"{SMALL}:inference").name == "small inference"


def test_a_relative_path_and_a_module_work_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(WORKLOADS)
    assert load("small.py:inference").name == "small inference"
    monkeypatch.chdir(WORKLOADS.parent)
    assert load("workloads.small:inference").name == "small inference"


def test_a_workload_that_stands_in_the_file_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "ready.py", "made = Workload(model=len, dataset=[1], name='ready')\n")
    assert load(f"{tmp_path}/ready.py:made").name == "ready"


def test_a_whole_step_of_ones_own_runs() -> None:
    workload = load(f"{OWN_STEP}:workload")
    assert workload.default_mode() == "train"
    model, step = calls.make_model(workload), workload.step
    assert step is not None
    optimizer = calls.make_optimizer(workload, model)
    loader = DataLoader(
        calls.make_dataset(workload), batch_sampler=workload.batch_sampler, collate_fn=workload.collate_fn
    )
    batches = list(loader)
    assert [calls.count_items(batch) for batch in batches] == [5, 5, 5, 5, 4]
    loss = calls.step_loss(step(model, batches[0]))
    assert loss is not None
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (f"{SMALL}", r"small\.py names no function; write .*small\.py:workload"),
        (f"{SMALL}:", r"names no function; write .*small\.py:workload"),
        (f"{SMALL}:no such", "names no function"),
        ("nowhere.py:workload", r"there is no file nowhere\.py"),
        (f"{WORKLOADS}/:workload", "is a folder, not a file"),
        (f"{SMALL}:workloads", r"small\.py has no function 'workloads'; it has: make_model, accuracy, workload, inf"),
        (f"{SMALL}:partial_", "has no function 'partial_'; it has: make_model"),
        (f"{SMALL}:with_arguments", "must be callable without arguments, but it needs: model, items"),
        (f"{SMALL}:not_a_workload", r"must return a stoker\.Workload, but it returned a Sequential"),
        (f"{SMALL}:failing", r"failed: FileNotFoundError: no folder /data/imagenet \(small\.py, line \d+\)"),
        ("no_such_package.module:workload", "there is no module 'no_such_package' in "),
        ("stoker.no_such:workload", r"there is no module 'stoker\.no_such'"),
        ("stoker.units:parse", r"stoker\.units has no function 'parse'; it has: parse_bytes, parse_seconds, format_b"),
    ],
)
def test_a_wrong_function_is_told_in_one_sentence(spec: str, sentence: str) -> None:
    one_sentence(spec, sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import wandb_of_mine", r"ModuleNotFoundError: No module named 'wandb_of_mine' \(broken\.py, line 2\)"),
        ("\n1 / 0", r"ZeroDivisionError: division by zero \(broken\.py, line 3\)"),
        ("def f(:", r"SyntaxError: .* \(broken\.py, line 2\)"),
        ("raise SystemExit(2)", r"it ended the program \(SystemExit: 2\); put what a script does under if __name__"),
        ("workload = 'resnet18'", "'workload' is a str, not a function"),
        ("", "has no function 'workload'; it has: no functions"),
        ("def workload(): pass", r"must return a stoker\.Workload, but it returned nothing \(None\)"),
        ("def workload(): return Workload(model=None, dataset=1)", "needs a model, and a dataset or a loader"),
        ("def workload(): return Workload(model=1, dataset=1, loss=3)", "loss must be something to call, got int"),
        ("def workload(): return Workload(modle=1)", r"TypeError: .*modle.* \(broken\.py, line 2\)"),
        ("def workload(): raise SystemExit", r"failed: it ended the program \(SystemExit\)"),
    ],
)
def test_a_broken_file_is_told_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    write(tmp_path / "broken.py", text + "\n")
    one_sentence(f"{tmp_path}/broken.py:workload", sentence)
    assert "broken" not in sys.modules or text.startswith(("def", "workload")) or not text


def test_an_error_deep_in_their_helpers_names_the_helper(tmp_path: Path) -> None:
    write(tmp_path / "helper_of_mine.py", "import json\ndef read():\n    return json.loads('{')\n")
    write(tmp_path / "uses_helper.py", "import helper_of_mine\ndef workload():\n    return helper_of_mine.read()\n")
    one_sentence(f"{tmp_path}/uses_helper.py:workload", r"JSONDecodeError: .* \(helper_of_mine\.py, line 4\)")


def test_what_their_file_prints_leaves_stdout_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "print('loading')\ndef workload():\n    print('making')\n    return Workload(model=len, dataset=[1])\n"
    write(tmp_path / "chatty.py", text)
    load(f"{tmp_path}/chatty.py:workload")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "loading\nmaking\n"


def test_a_file_is_run_once_and_again_when_it_changes(tmp_path: Path) -> None:
    text = "def workload():\n    return Workload(model=len, dataset=[1], name='{}')\n"
    write(tmp_path / "edited.py", text.format("before"))
    first = load(f"{tmp_path}/edited.py:workload")
    module = sys.modules["edited"]
    load(f"{tmp_path}/edited.py:workload")
    assert sys.modules["edited"] is module
    write(tmp_path / "edited.py", text.format("afterwards"))
    second = load(f"{tmp_path}/edited.py:workload")
    assert (first.name, second.name) == ("before", "afterwards")


# ---------------------------------------------------------------- other processes

CLASS = """
class Items:
    def __len__(self): return 4
    def __getitem__(self, index): return index
def workload():
    return Workload(model=len, dataset=Items())
"""


@pytest.mark.parametrize("name", ["items_of_mine", "random", "my-train 1", "pytest"])
def test_a_fresh_process_finds_the_classes_of_a_file_whatever_its_name(tmp_path: Path, name: str) -> None:
    write(tmp_path / f"{name}.py", CLASS)
    workload = load(f"{tmp_path}/{name}.py:workload")
    module = type(workload.dataset).__module__
    assert module == name if name == "items_of_mine" else module.startswith("stoker.workload.userfile.")
    (tmp_path / "items.pickle").write_bytes(pickle.dumps(workload.dataset))
    # what spawn does in a child: take over the search path, then unpickle
    code = "import sys, pickle; sys.path[:] = eval(sys.argv[1]); print(len(pickle.load(open(sys.argv[2], 'rb'))))"
    path = [entry for entry in sys.path if entry != str(tmp_path)] if "workload.userfile" in module else sys.path
    done = subprocess.run(
        [sys.executable, "-c", code, repr(path), f"{tmp_path}/items.pickle"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "4\n", done.stderr


def test_two_files_of_one_name_stay_apart(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write(
            tmp_path / folder / "twins_of_mine.py",
            f"def workload():\n    return Workload(model=1, dataset='{folder}')\n",
        )
    made = [load(f"{tmp_path}/{folder}/twins_of_mine.py:workload") for folder in ("one", "two", "one")]
    assert [workload.dataset for workload in made] == ["one", "two", "one"]


def test_spawned_workers_load_a_dataset_of_the_file() -> None:
    workload = load(f"{SMALL}:workload")
    dataset = calls.make_dataset(workload)
    loader = DataLoader(dataset, batch_size=16, num_workers=1, multiprocessing_context="spawn")
    assert [calls.count_items(batch) for batch in loader] == [16] * 4


def test_the_module_loads_no_torch() -> None:
    code = "import sys, stoker.workload.spec, stoker.workload.workload; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# ---------------------------------------------------------------- items


def test_items_bound_a_function_of_ones_own() -> None:
    workload = load(f"{SMALL}:workload", items=10)
    assert len(calls.make_dataset(workload)) == 10
    assert len(calls.make_dataset(load(f"{SMALL}:workload", items=1000))) == 64
    assert len(calls.make_dataset(workload, "validation")) == 16


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


def test_items_that_cannot_bound_are_told() -> None:
    one_sentence("resnet18", "items must be at least 1, got 0", items=0)
    one_sentence(f"{OWN_STEP}:workload", "--items cannot bound a workload that brings its own sampler", items=3)
    numbers = list(range(4))
    sampled = Workload(model=nn.Identity(), dataset=numbers, sampler=RandomSampler(numbers))
    with pytest.raises(InputError, match="brings its own sampler"):
        bounded(sampled, 2)
    with pytest.raises(InputError, match="a dataset that knows its length"):
        calls.make_dataset(bounded(Workload(model=nn.Identity(), dataset=Endless), 2))


@pytest.mark.parametrize("options", [{"data": "jpeg"}, {"weights": Path("weights.pt")}])
def test_data_and_weights_belong_to_names(options: dict[str, Any]) -> None:
    one_sentence(f"{SMALL}:workload", "goes with a model's name; .* brings its own", **options)


# ---------------------------------------------------------------- a model's name


@pytest.fixture
def small_sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Synthetic sets of a few files, in a folder of the test's own."""
    real = data_room.open_data

    def open_small(kind: str, **options: Any) -> data_room.OpenedData:
        return real(kind, **{"root": tmp_path / "cache", "files": 12, **options})

    monkeypatch.setattr(data_room, "open_data", open_small)


def first_batch(workload: Workload, part: Any = "train") -> Any:
    return next(iter(DataLoader(calls.make_dataset(workload, part), batch_size=2, collate_fn=workload.collate_fn)))


def train_step(workload: Workload) -> float:
    model = calls.make_model(workload).train()
    optimizer = calls.make_optimizer(workload, model)
    inputs, target = calls.split(first_batch(workload))
    loss = calls.loss_of(workload, calls.forward(workload, model, inputs), target)
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.usefixtures("small_sets")
def test_a_named_model_comes_with_data_loss_and_score() -> None:
    workload = load("squeezenet1_1", items=20)
    assert workload.default_mode() == "train"
    assert (workload.name, workload.data_name) == ("squeezenet1_1", "jpeg")
    assert len(calls.make_dataset(workload)) == 20
    assert len(calls.make_dataset(workload, "validation")) == 2
    assert len(list(workload.files() if callable(workload.files) else ())) == 12
    assert train_step(workload) > 0
    inputs, target = calls.split(first_batch(workload, "validation"))
    assert workload.metric is not None
    assert 0 <= workload.metric(calls.forward(workload, calls.make_model(workload).eval(), inputs), target) <= 1


@pytest.mark.usefixtures("small_sets")
@pytest.mark.parametrize(
    ("name", "data", "shape"),
    [
        ("squeezenet1_1", "tensors", (2, 3, 224, 224)),
        ("squeezenet1_1", "packed", (2, 3, 224, 224)),
        ("squeezenet1_1", "device", (2, 3, 224, 224)),
        ("inception_v3", "device", (2, 3, 299, 299)),
        ("r3d_18", "device", (2, 3, 16, 112, 112)),
        ("s3d", "device", (2, 3, 16, 224, 224)),
        ("r3d_18", "video", (2, 3, 16, 112, 112)),
        ("fcn_resnet50", "jpeg", (2, 3, 224, 224)),
    ],
)
def test_batches_have_the_shape_that_the_model_takes(name: str, data: str, shape: tuple[int, ...]) -> None:
    workload = load(name, data=data, items=4)
    inputs, target = calls.split(first_batch(workload))
    assert inputs.shape == shape
    assert target.shape == (2,)
    assert workload.on_device is (data == "device")


@pytest.mark.usefixtures("small_sets")
@pytest.mark.parametrize(("name", "pad_id"), [("hf/bert-base-uncased", 0), ("hf/roberta-base", 1)])
def test_texts_are_padded_as_the_model_wants(name: str, pad_id: int) -> None:
    batch = first_batch(load(name))
    padding = batch["input_ids"][batch["attention_mask"] == 0]
    assert len(padding) > 0
    assert set(padding.tolist()) == {pad_id}


@pytest.mark.usefixtures("small_sets")
def test_families_without_a_loss_infer_and_refuse_to_train() -> None:
    workload = load("raft_small", data="device", items=2)
    assert workload.default_mode() == "infer"
    with torch.inference_mode():
        output = calls.forward(workload, calls.make_model(workload).eval(), calls.split(first_batch(workload))[0])
    assert output[-1].shape == (2, 2, 224, 224)
    one_sentence("fcn_resnet50", "is a segmentation model, which no loss fits by name; use --mode infer", mode="train")


@pytest.mark.usefixtures("small_sets")
def test_data_that_the_model_cannot_take_is_told(tmp_path: Path) -> None:
    one_sentence(
        "resnet18", "resnet18 takes image data; --data can be: jpeg, tensors, packed, device or a", data="text"
    )
    one_sentence("r3d_18", "r3d_18 takes video data; --data can be: video, device or a folder of videos", data="jpeg")
    one_sentence("hf/bert-base-uncased", "takes text data; --data can be: text, device$", data=str(tmp_path))
    one_sentence("resnet18", "is neither a known kind of data nor an existing folder", data="jepg")
    load("squeezenet1_1")
    folder = next((tmp_path / "cache").glob("jpeg*"))
    assert load("squeezenet1_1", data=str(folder)).data_name == folder.name
    one_sentence("r3d_18", "takes videos, but the folder .* holds images", data=str(folder))


@pytest.mark.usefixtures("small_sets")
def test_weights_are_checked_at_the_door(tmp_path: Path) -> None:
    (tmp_path / "noise.pt").write_bytes(b"noise")
    one_sentence("squeezenet1_1", "is not a file that torch.save wrote", weights=tmp_path / "noise.pt", data="device")
    torch.save(nn.Linear(1, 1).state_dict(), tmp_path / "other.pt")
    one_sentence("squeezenet1_1", "holds another model's weights", weights=tmp_path / "other.pt", data="device")


def test_an_unknown_name_suggests() -> None:
    one_sentence("resnet5O", "no model is called 'resnet5O'; did you mean resnet50")


@pytest.mark.usefixtures("small_sets")
def test_a_named_workload_travels_to_another_process() -> None:
    import cloudpickle

    workload = pickle.loads(cloudpickle.dumps(load("squeezenet1_1", items=4)))
    assert train_step(workload) > 0
