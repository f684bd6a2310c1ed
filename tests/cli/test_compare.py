"""`stoker compare`: sides of saved files and studies, its answers and its exit statuses."""

import json
import time
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import torch

import stoker
from stoker.records import Comparison, Stalls, parse
from stoker.report.documents import document_of, machine_document, plan_document, save, stalls_document, trial_document
from tests.analysis.saved_trials import machine, trial
from tests.commands import apart, here
from tests.records.test_documents import PLAN
from tests.report.samples import a_limit
from tests.workloads.planted import Numbers

TIMES = {"a": (2.0, 2.02, 1.98), "same": (2.0, 2.04, 1.98), "slow": (2.2, 2.22, 2.18)}


Where = Literal["memory", "cached", "cold"]
SOURCES: tuple[tuple[Where, float], ...] = (("memory", 1.0), ("cached", 2.0), ("cold", 3.0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three saved runs each of a base, of the same again, and of a slower one."""
    path = tmp_path_factory.mktemp("saved")
    for name, times in TIMES.items():
        for number, seconds in enumerate(times, start=1):
            made = trial({"wait": seconds / 4, "forward": 3 * seconds / 4}, number=number)
            save(trial_document(made, ()), path / f"{name}{number}.json")
    return path


@pytest.fixture
def saved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def of(name: str) -> list[str]:
    return [f"{name}{number}.json" for number in (1, 2, 3)]


def test_the_answer_is_one_sentence_above_a_table(saved: Path) -> None:
    done = here("compare", *of("a"), "--with", *of("slow"))
    assert done.returncode == 0, done.stderr
    assert "Slower by 10 % (8–12): 2 s → 2.2 s a batch, once steady." in done.stdout
    assert "A: 3 runs (a1.json, a2.json, a3.json)" in done.stdout
    wait = next(line for line in done.stdout.splitlines() if line.startswith(" wait"))
    assert wait.split()[1:5] == ["500", "ms", "550", "ms"]
    assert wait.rstrip().endswith("slower")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ([*of("a"), "--with", *of("slow"), "--fail-if-slower", "5%"], 3),
        (["--fail-if-slower=5%", *of("a"), "--with", *of("slow"), "--strict"], 3),
        ([*of("a"), "--fail-if-slower", "20 %", "--with", *of("slow")], 0),
        ([*of("slow"), "--with", *of("a"), "--fail-if-slower", "0%", "--strict"], 0),
        ([*of("a"), "--with", *of("same")], 0),
        ([*of("a"), "--with", *of("same"), "--strict"], 4),
        ([*of("a"), "--with", *of("same"), "--strict", "--fail-if-slower", "10%"], 0),
        ([*of("a"), "--with", *of("same"), "--strict", "--fail-if-slower", "1%"], 4),
        ([*of("a"), "--with", *of("same"), "--fail-if-slower", "1%"], 0),
    ],
)
def test_the_exit_status(saved: Path, words: list[str], status: int) -> None:
    done = here("compare", *words)
    assert done.returncode == status, done.stdout + done.stderr


def test_everything_after_with_is_side_b(saved: Path) -> None:
    words = ["a1.json", "a2.json", "--with", "same1.json", "--anyway", "same2.json", "--json"]
    document = json.loads(here("compare", *words).stdout)
    assert document["a"]["sources"] == ["a1.json", "a2.json"]
    assert document["b"]["sources"] == ["same1.json", "same2.json"]
    for written in (["--with=same1.json", "same2.json"], ["--with", "same1.json", "--with", "same2.json"]):
        again = json.loads(here("compare", "a1.json", "a2.json", *written, "--json").stdout)
        assert again == document


def test_the_document_is_a_comparison(saved: Path, tmp_path: Path) -> None:
    done = here("compare", *of("a"), "--with", *of("slow"), "--fail-if-slower", "5%", "--json")
    document = json.loads(done.stdout)
    assert (document["kind"], document["answer"], document["slower_than_allowed"]) == ("comparison", "slower", True)
    found = parse(done.stdout.encode())
    assert isinstance(found, Comparison)
    assert found == stoker.compare(of("a"), of("slow"))
    assert "Slower by 10 %" in str(found)
    (tmp_path / "c.json").write_text(done.stdout)
    page = here("report", str(tmp_path / "c.json"), "-o", str(tmp_path / "r.html"))
    assert page.returncode == 0, page.stderr
    assert "Slower by 10 % (8–12)" in (tmp_path / "r.html").read_text()


def test_markdown_for_the_summary_of_a_job(saved: Path) -> None:
    done = here("compare", *of("a"), "--with", *of("slow"), "--markdown", "--fail-if-slower", "5%")
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert lines[2].startswith("**Slower by 10 % (8–12): 2 s → 2.2 s a batch")
    assert lines[2].endswith("That is more than the 5 % allowed.")
    rows = [line for line in lines if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1
    assert "| wait | 500 ms | 550 ms | +10 % (+7.6 % … +12 %) | slower |" in rows


def test_names_of_the_user_do_no_harm_in_markdown(saved: Path, tmp_path: Path) -> None:
    evil = tmp_path / "a|b<script>*_`.json"
    evil.write_bytes((saved / "a1.json").read_bytes())
    done = here("compare", str(evil), "--with", "same1.json", "--markdown")
    assert "a\\|b\\<script\\>\\*\\_\\`.json" in done.stdout


def test_one_run_a_side_says_where_its_interval_comes_from(saved: Path) -> None:
    done = here("compare", "a1.json", "--with", "same3.json")
    assert "Cannot tell" in done.stdout
    assert "too few runs" in " ".join(done.stdout.split())


def test_runs_that_did_not_finish_are_left_out_and_named(saved: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    save(trial_document(trial({"forward": 0.1}, outcome="oom"), ()), broken)
    done = here("compare", *of("a"), str(broken), "--with", *of("slow"))
    assert "left out on side A: broken.json: the run ended with oom" in done.stdout
    alone = here("compare", str(broken), "--with", *of("slow"))
    assert (alone.returncode, alone.stderr) == (
        1,
        "stoker: side A has no finished run: broken.json: the run ended with oom\n",
    )


def test_what_cannot_be_compared_is_refused_in_one_sentence(saved: Path, tmp_path: Path) -> None:
    save(document_of(a_limit()), tmp_path / "limit.json")
    save(machine_document(machine()), tmp_path / "machine.json")
    save(plan_document(PLAN), tmp_path / "plan.json")
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "trials.json").write_text('{"kind": "trials", "trials": 3}')
    other = msgspec.structs.replace(trial({"forward": 0.1}), machine=machine("another CPU"))
    save(trial_document(other, ()), tmp_path / "other.json")
    cases = {
        "limit.json": "limit.json holds a limit; compare takes trials, plans and studies",
        "machine.json": "machine.json holds a machine; compare takes trials, plans and studies",
        "text.json": "this is not a JSON document",
        "trials.json": "this exported study cannot be read",
        "missing.json": "cannot read",
        "missing": "there is no file",
        "plan.json": "compare like with like",
        "other.json": "--anyway compares them nevertheless",
    }
    for name, sentence in cases.items():
        done = here("compare", "a1.json", "--with", str(tmp_path / name))
        assert done.returncode == 1, name
        assert sentence in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert here("compare", "a1.json", "--with", str(tmp_path / "other.json"), "--anyway").returncode == 0
    twice = here("compare", "a1.json", "./a1.json", "--with", "slow1.json")
    assert twice.stderr == "stoker: side A has the same runs twice: a1.json and a1.json\n"


def test_wrong_usage(saved: Path) -> None:
    for words in (["a1.json"], [], ["--with", "a1.json"], ["a1.json", "--with", "--strict"]):
        done = here("compare", *words)
        assert done.returncode == 2
        assert "name results on both sides" in " ".join(done.stderr.replace("│", " ").split())
    assert "choose one" in here("compare", "a1.json", "--with", "a2.json", "--json", "--markdown").stderr
    for text in ("5", "x%", "-5%", "nan%"):
        assert "write it like 5%" in here("compare", "a1.json", "--with", "a2.json", f"--fail-if-slower={text}").stderr


def test_plans_and_stalls(tmp_path: Path) -> None:
    assert PLAN.measured is not None
    for name, times in TIMES.items():
        measured = msgspec.structs.replace(PLAN.measured, samples_s=times)
        save(plan_document(msgspec.structs.replace(PLAN, measured=measured)), tmp_path / f"{name}.json")
    plans = stoker.compare(tmp_path / "a.json", tmp_path / "slow.json")
    assert (plans.answer, plans.basis, plans.a.runs) == ("slower", "objective", 3)

    for name, factor in (("a", 1.0), ("slow", 1.5)):
        found = {
            source: trial({"forward": factor * seconds}, extent=stoker.Extent(batches=20, source=source))
            for source, seconds in SOURCES
        }
        save(stalls_document(Stalls(**found), {}), tmp_path / f"stalls-{name}.json")
    stalls = stoker.compare(tmp_path / "stalls-a.json", tmp_path / "stalls-slow.json")
    assert (stalls.answer, [each.name for each in stalls.tasks]) == (
        "slower",
        ["source=memory", "source=cached", "source=cold"],
    )


def test_studies_by_name_and_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, factor in (("before", 1.0), ("after", 1.2)):
        rows = ["workload,batch_size,num_workers,repeat,items,seconds"]
        rows += [
            f"net,8,{workers},{repeat},100,{factor * seconds * (1 + repeat / 100)}"
            for workers, seconds in ((0, 10.0), (2, 5.0))
            for repeat in range(3)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(rows))
        done = here("study", "import", f"{name}.csv", "--name", name, "--db", f"{name}.db")
        assert done.returncode == 0, done.stderr
        assert here("study", "export", name, "-o", f"{name}.json", "--db", f"{name}.db").returncode == 0
    for sides in (("before", "--db", "before.db", "--with", "after.json"), ("before.json", "--with", "after.json")):
        assert "not alike" in here("compare", *sides).stderr  # a table does not say which machine it came from
        done = here("compare", *sides, "--anyway", "--json")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document["answer"] == "slower"
        assert document["total"]["ratio"] == pytest.approx(1.2)
        assert {each["name"] for each in document["tasks"]} == {"num_workers=0", "num_workers=2"}
    assert "has no study 'other'" in here("compare", "before", "--with", "other", "--db", "before.db").stderr


def test_real_runs_on_both_sides(tmp_path: Path) -> None:
    """Ten milliseconds were planted in each step of side B."""
    files: dict[str, list[str]] = {"a": [], "b": []}
    for name, step_s in (("a", 0.01), ("b", 0.02)) * 2:

        def step(model: Any, batch: Any, step_s: float = step_s) -> None:
            time.sleep(step_s)

        source = stoker.Workload(model=torch.nn.Identity(), dataset=Numbers(64), step=step)
        made = stoker.profile(source, stoker.Setting(batch_size=4), stoker.Extent(batches=10), device="cpu")
        assert made.outcome == "done", made.problem
        files[name].append(str(tmp_path / f"{name}{len(files[name])}.json"))
        save(trial_document(made, ()), Path(files[name][-1]))
    done = apart("compare", *files["a"], "--with", *files["b"], "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    found = next(each for each in document["stages"] if each["name"] == "step")
    assert found["ratio"] > 1.3
    assert document["a"]["runs"] == document["b"]["runs"] == 2
    assert document["changes"] == []
