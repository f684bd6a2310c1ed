"""What to change in the user's code, for the ways in which loaders are made."""

from pathlib import Path
from textwrap import dedent

import pytest

from stoker.integrations.edits import Change, Site, change_for

WORKERS = {"num_workers": 8}


def _change(
    tmp_path: Path, code: str, changes: dict[str, int | float | bool | str] | None = None, **site: object
) -> Change:
    """The change for the loader that the line with the mark `# here` makes."""
    file = tmp_path / "train.py"
    text = dedent(code).lstrip()
    file.write_text(text)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "# here" in each)
    return change_for(Site(frames=((str(file), line),), **site), WORKERS if changes is None else changes)  # type: ignore[arg-type]


def _only(change: Change) -> tuple[int, str, str]:
    assert change.how == ""
    assert change.arguments == ()
    (edit,) = change.edits
    return edit.line, edit.before, edit.after


@pytest.mark.parametrize(
    ("call", "before"),
    [
        ("DataLoader(data, 32, num_workers=4)  # here", "DataLoader(…, num_workers=4)"),
        ("DataLoader(data, 32)  # here", "DataLoader(…)"),
        ("torch.utils.data.DataLoader(data)  # here", "torch.utils.data.DataLoader(…)"),
        ("DataLoader(data, 32, True, None, None, 4)  # here", "DataLoader(…, 4)"),
        ("iter(wrap(DataLoader(data, num_workers=2 + 2)))  # here", "DataLoader(…, num_workers=2 + 2)"),
        ("create_loader(data, num_workers=4)  # here", "create_loader(…, num_workers=4)"),
        ("MyLoader(data)  # here", "MyLoader(…)"),
    ],
)
def test_an_argument_of_the_call_is_changed_there(tmp_path: Path, call: str, before: str) -> None:
    assert _only(_change(tmp_path, f"loader = {call}\n")) == (1, before, "num_workers=8")


def test_a_call_over_several_lines(tmp_path: Path) -> None:
    code = """
    train = DataLoader(  # here
        data,
        batch_size=32,
        num_workers=4,
    )
    """
    changes: dict[str, int | float | bool | str] = {
        "num_workers": 8,
        "prefetch_factor": 4,
        "persistent_workers": True,
    }
    change = _change(tmp_path, code, changes)
    after = "num_workers=8, prefetch_factor=4, persistent_workers=True"
    assert _only(change) == (1, "DataLoader(…, num_workers=4)", after)
    assert change.edits[0].sentence == f"{tmp_path}/train.py:1 `DataLoader(…, num_workers=4)` → `{after}`"


def test_of_two_loaders_on_a_line_the_one_that_shuffles_is_meant(tmp_path: Path) -> None:
    code = "a, b = DataLoader(x, num_workers=1), DataLoader(y, shuffle=True, num_workers=2)  # here\n"
    assert _only(_change(tmp_path, code))[1] == "DataLoader(…, num_workers=2)"


def test_a_variable_is_changed_where_it_is_set(tmp_path: Path) -> None:
    code = """
    WORKERS: int = 2
    WORKERS = 4
    loader = DataLoader(data, num_workers=WORKERS)  # here
    WORKERS = 6
    """
    assert _only(_change(tmp_path, code)) == (2, "WORKERS = 4", "WORKERS = 8")


def test_the_default_of_a_parameter(tmp_path: Path) -> None:
    code = """
    def loaders(data, *, workers=4):
        return DataLoader(data, num_workers=workers)  # here
    """
    assert _only(_change(tmp_path, code)) == (1, "def loaders(…, workers=4)", "workers=8")


@pytest.mark.parametrize(
    ("option", "flag"),
    [
        ('"-j", "--workers", default=4, type=int', "--workers"),
        ('"--num-threads", dest="workers", default=4', "--num-threads"),
        ('"-workers", default=4', "-workers"),
    ],
)
def test_an_option_of_the_script_is_an_argument_to_add(tmp_path: Path, option: str, flag: str) -> None:
    code = f"""
    parser.add_argument("--other", default=1)
    parser.add_argument({option})
    args = parser.parse_args()
    loader = DataLoader(data, num_workers=args.workers, pin_memory=True)  # here
    """
    assert _change(tmp_path, code) == Change(arguments=(flag, "8"))


def test_what_the_call_lacks_is_added_to_it_beside_an_option(tmp_path: Path) -> None:
    code = """
    parser.add_argument("--workers", default=4)
    loader = DataLoader(data, num_workers=parser.parse_args().workers)  # here
    """
    change = _change(tmp_path, code, {"num_workers": 8, "prefetch_factor": 4})
    assert change.arguments == ("--workers", "8")
    assert [(edit.line, edit.before, edit.after) for edit in change.edits] == [
        (2, "DataLoader(…)", "prefetch_factor=4")
    ]


def test_a_field_of_a_configuration(tmp_path: Path) -> None:
    code = """
    class Config:
        workers: int = 4
    loader = DataLoader(data, num_workers=Config().workers)  # here
    """
    assert _only(_change(tmp_path, code)) == (2, "workers: int = 4", "workers: int = 8")


@pytest.mark.parametrize(
    ("made", "before", "after"),
    [
        ("{'num_workers': 1, 'pin_memory': True}", "'num_workers': 1", "'num_workers': 8"),
        ("dict(num_workers=1)", "num_workers=1", "num_workers=8"),
        ("{}; options.update(num_workers=1)", "num_workers=1", "num_workers=8"),
    ],
)
def test_an_entry_of_a_dictionary(tmp_path: Path, made: str, before: str, after: str) -> None:
    code = f"options = {made}\nloader = DataLoader(data, **options)  # here\n"
    assert _only(_change(tmp_path, code)) == (1, before, after)
    code = f"options = {made}\nloader = DataLoader(data, num_workers=options['num_workers'])  # here\n"
    assert _only(_change(tmp_path, code)) == (1, before, after)


def test_the_trainer_of_hugging_face_has_arguments_of_its_own(tmp_path: Path) -> None:
    code = """
    arguments = TrainingArguments(output_dir="x", dataloader_num_workers=2)
    Trainer(model, arguments).train()  # here
    """
    changes: dict[str, int | float | bool | str] = {"num_workers": 8, "persistent_workers": True}
    change = _change(tmp_path, code, changes, made_by=("accelerate", "transformers"))
    after = "dataloader_num_workers=8, dataloader_persistent_workers=True"
    assert _only(change) == (1, "TrainingArguments(…, dataloader_num_workers=2)", after)


def test_training_arguments_from_the_command_line(tmp_path: Path) -> None:
    code = """
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    Trainer(model, arguments).train()  # here
    """
    change = _change(tmp_path, code, made_by=("transformers",))
    assert change == Change(arguments=("--dataloader_num_workers", "8"))


def test_training_arguments_from_elsewhere(tmp_path: Path) -> None:
    change = _change(tmp_path, "build(model).train()  # here\n", made_by=("transformers",))
    assert change.how == "give the TrainingArguments: dataloader_num_workers=8"


def test_lightning_makes_loaders_of_a_data_modules_own_arguments(tmp_path: Path) -> None:
    code = "module = LightningDataModule.from_datasets(train, num_workers=2)\ntrainer.fit(model, module)  # here\n"
    file = tmp_path / "train.py"
    file.write_text(code)
    change = change_for(Site(frames=((str(file), 1), (str(file), 2)), made_by=("lightning",)), WORKERS)
    assert _only(change) == (1, "LightningDataModule.from_datasets(…, num_workers=2)", "num_workers=8")


def test_a_loader_that_was_made_before_is_looked_for_where_it_is_read(tmp_path: Path) -> None:
    code = """
    def loaders(data):
        return DataLoader(data, 8, shuffle=True), DataLoader(data, 8)

    for batch in train:  # here
        step(batch)
    """
    assert _only(_change(tmp_path, code, known=False)) == (2, "DataLoader(…)", "num_workers=8")
    how = _change(tmp_path, "for batch in train:  # here\n    step(batch)\n", known=False).how
    assert how == f"{tmp_path}/train.py:1 reads the loader; where it is made, give it these arguments: num_workers=8"


def test_without_a_call_that_can_be_found_a_sentence_says_what_to_do(tmp_path: Path) -> None:
    change = _change(tmp_path, "loader = make()  # here\n")
    assert change == Change(how=f"{tmp_path}/train.py:1 makes the loader; give it these arguments: num_workers=8")
    gone = change_for(Site(frames=(("/nowhere/train.py", 3),)), WORKERS)
    assert gone.how == "/nowhere/train.py:3 makes the loader; give it these arguments: num_workers=8"
    assert change_for(Site(frames=()), WORKERS).how == "give the loader these arguments: num_workers=8"


def test_code_that_cannot_be_parsed(tmp_path: Path) -> None:
    assert "makes the loader" in _change(tmp_path, "loader = DataLoader(  # here\n").how
