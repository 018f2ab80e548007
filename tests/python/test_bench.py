"""``python -m kvtrie bench``: which tests are run, what each computes, what is reused, and the tables. No seconds."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from kvtrie.cli import bench, main
from kvtrie.cli.bench_runs import MESSAGE, FirstToken, Reuse, Speed, Task, speeds
from random_models import random_model
from serving import TINY


class Counted:
    """A model that notes the tokens of each step."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.steps: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, step: Any) -> Any:
        self.steps.append(len(step.tokens))
        return self._model(step)


@pytest.fixture(scope="module")
def dense() -> Any:
    return random_model("dense")


def clock() -> Any:
    """One second later each time."""
    return itertools.count().__next__


def test_a_test_computes_what_its_name_says(dense: Any) -> None:
    model: Any = Counted(dense)
    tests = [Task(20, 0, 0, 8), Task(0, 3, 10, 8), Task(5, 2, 10, 8)]
    found = list(speeds(model, tests, "float16", runs=2, clock=clock()))
    assert [each.test.name for each in found] == ["pp20", "tg3 @ d10", "pp5+tg2 @ d10"]
    assert [each.seconds for each in found] == [(1, 1)] * 3  # one run more is not counted
    before = {0: [1], 10: [8, 2]}
    runs = {0: [8, 8, 4], 1: [1, 1, 1], 2: [5, 1, 1]}
    assert model.steps == [*before[0], *runs[0] * 3, *before[10], *runs[1] * 3, *before[10], *runs[2] * 3]


def test_a_speed_is_the_median_with_its_ends() -> None:
    assert Speed(Task(100, 0, 0, 512), (1.0, 2.0, 10.0)).rates == (50.0, 10.0, 100.0)
    found = FirstToken("next turn", 132, 100, "device", (1.0, 2.0, 3.0), (8.0, 8.0, 8.0))
    assert found.gain == 4.0


@pytest.mark.parametrize("kind", ["dense", "window"])
def test_what_is_reused_and_from_where(kind: str) -> None:
    """Every run finds the whole conversation, and computes the message alone."""
    model: Any = Counted(random_model(kind))
    with Reuse(model, 100, "float16", 64, clock()) as reuse:
        model.steps.clear()
        rows = list(reuse.rows(runs=2))
    assert [(row.name, row.prompt, row.reused, row.tier) for row in rows] == [
        ("next turn", 100 + MESSAGE, 100, "device"),
        ("branch", 50 + MESSAGE, 50, "device"),
        ("back from host", 100 + MESSAGE, 100, "host"),
        ("back from disk", 100 + MESSAGE, 100, "disk"),
    ]
    assert all(len(row.seconds) == len(row.cold) == 2 for row in rows)
    cold = [64, 64, 100 + MESSAGE - 128] * 3 + [64, 50 + MESSAGE - 64] * 3
    assert model.steps == cold + [MESSAGE] * 3 * 4


def test_states_are_reused_where_they_were_kept() -> None:
    with Reuse(random_model("hybrid"), 100, "float16", 64) as reuse:
        rows = {row.name: row for row in reuse.rows(runs=1)}
    assert rows["next turn"].reused == rows["back from disk"].reused == 100
    assert rows["branch"].reused <= 50


# ---- the command -----------------------------------------------------------------------------------------------------

FEW = ("tiny", "-p", "16,8", "-n", "2", "-pg", "8,2", "-r", "2", "-d", "0,24")
NAMES = ["pp16", "pp8", "tg2", "pp8+tg2"]


def run(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    return main(["bench", *arguments], out), out.getvalue()


def cells(lines: list[str]) -> Iterator[list[str]]:
    for line in lines:
        assert line.startswith("| ") and line.endswith(" |")
        yield [cell.strip() for cell in line[2:-2].split(" | ")]


def test_the_tables() -> None:
    code, text = run(*FEW)
    first, second = (part.splitlines() for part in text.strip().split("\n\n"))
    assert code == 0 and len({len(line) for line in first}) == len({len(line) for line in second}) == 1
    header, *rows = cells([first[0], *first[2:]])
    assert header == ["model", "size", "params", "device", "threads", "K and V", "test", "t/s"]
    assert [row[-2] for row in rows] == [*NAMES, *(f"{name} @ d24" for name in NAMES)]
    assert all(re.fullmatch(r"[\d.]+ \([\d.]+ \.\. [\d.]+\)", row[-1]) for row in rows)
    assert {row[2] for row in rows} == {f"{bench.parameters(kv.models.load(TINY)) / 1e6:.2f} M"}
    header, *rows = cells([second[0], *second[2:]])
    assert header[1:6] == ["first token", "prompt", "reused", "computed", "from"]
    assert [row[1:6] for row in rows] == [
        ["next turn", "56", "24", "32", "device"],
        ["branch", "44", "12", "32", "device"],
        ["back from host", "56", "24", "32", "host"],
        ["back from disk", "56", "24", "32", "disk"],
    ]


def test_the_figures_for_programs() -> None:
    code, text = run(
        "tiny", "-p", "8", "-n", "0", "-b", "4,8", "-r", "3", "--no-reuse", "--json", "--kv-dtype", "float32"
    )
    (found,) = json.loads(text)
    assert code == 0 and found["first_token"] == [] and found["kv_dtype"] == "float32"
    assert [(test["test"], test["batch"], len(test["seconds"])) for test in found["tests"]] == [
        ("pp8", 4, 3),
        ("pp8", 8, 3),
    ]
    assert all(test["slowest"] <= test["tokens_per_second"] <= test["fastest"] for test in found["tests"])


def test_parameters_are_those_of_the_checkpoint(dense: Any) -> None:
    config = dense.config
    assert config.tie_word_embeddings
    layer = 2 * 32 + 2 * (4 + 2) * 16 * 32 + 3 * 48 * 32
    assert bench.parameters(dense) == 97 * 32 + 32 + 2 * layer


def test_threads_are_told_to_a_process_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same arguments; the tables have a row for each number."""
    asked: list[tuple[list[str], str]] = []
    _, answer = run("tiny", "-p", "8", "-n", "0", "-r", "1", "--no-reuse", "--json")

    def child(command: list[str], env: dict[str, str], **_: Any) -> Any:
        asked.append((command[command.index("bench") :], env["POCL_MAX_PTHREAD_COUNT"]))
        return bench.subprocess.CompletedProcess(command, 0, answer)

    monkeypatch.setattr(bench.subprocess, "run", child)
    options = [
        "--device",
        "cpu",
        "--dtype",
        "q8_0",
        "-p",
        "8",
        "-n",
        "0",
        "-d",
        "0,4",
        "-pg",
        "4,2",
        "-r",
        "1",
        "--no-reuse",
    ]
    code, text = run("tiny", *options, "-t", "1,2")
    assert code == 0 and len(text.splitlines()) == 2 + 2
    parser = bench.argparse.ArgumentParser()
    bench.add_arguments(parser)
    wanted = vars(parser.parse_args([*options, "--json", "-m", "tiny"]))
    for (words, count), threads in zip(asked, ("1", "2")):
        assert count == threads and vars(parser.parse_args(words[1:])) == wanted
    monkeypatch.setattr(bench.subprocess, "run", lambda *_, **__: bench.subprocess.CompletedProcess([], 1, ""))
    assert run("tiny", "-t", "1")[0] == 1


@pytest.mark.ci
def test_a_process_with_one_thread() -> None:
    code, text = run("tiny", "-p", "8", "-n", "0", "-r", "1", "-t", "1", "--no-reuse", "--json")
    assert code == 0 and json.loads(text)[0]["threads"] == 1


def test_each_bench_of_the_repository_takes_what_dev_bench_gives_it() -> None:
    """``./dev bench`` runs every bench with ``--json FILE`` and ends at the first that fails."""
    benches = sorted((Path(__file__).parents[2] / "bench").glob("bench_*.py"))
    assert len(benches) > 30
    takes = re.compile(r"\barguments\(__doc__\)|\"--json\"")
    assert [each.name for each in benches if not takes.search(each.read_text())] == []


def test_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["-p", "x"], ["-p", "-1"], ["-d", ""], ["-pg", "5"], ["-pg", "0,5"], ["-b", "0"]):
        with pytest.raises(SystemExit):
            main(["bench", "tiny", *options])
    capsys.readouterr()
    assert run("tiny", "-r", "0")[0] == 1 and "[bench] -r: got 0, allowed 1 or more" in capsys.readouterr().err
    assert run("tiny", "-p", "8", "-d", "4090")[0] == 1
    assert "[bench] pp8 @ d4090: got 4098 tokens, allowed 4095, the model's context" in capsys.readouterr().err
