"""What a newcomer touches first: the demo, and the code in the texts."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

import kvtrie as kv
from processes import run_python
from random_models import random_model

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

TEXTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

sys.path.insert(0, str(EXAMPLES))
import conversations  # noqa: E402
import plot  # noqa: E402


def snippets(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def run(*command: str) -> Any:
    return run_python(*command, cwd=ROOT, environment={"PYTHONIOENCODING": "utf-8"})


# --- the demo ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo() -> Any:
    """The demo with short answers, its output in a pipe."""
    return run("examples/conversations.py", "--model", "tiny", "--tokens", "6")


def test_demo_ends_well_and_says_so_last(demo: Any) -> None:
    assert demo.returncode == 0, demo.stdout + demo.stderr
    last = demo.stdout.rstrip().splitlines()[-1]
    assert re.fullmatch(
        r"same: (\d+) of \1 tokens equal the cold run's(?: \(\d+ near ties not judged\))?, "
        r"largest difference in logits \d\.\de[-+]\d\d \(allowed 1e-03\)",
        last,
    )


def test_demo_output_in_a_pipe_is_plain(demo: Any) -> None:
    assert "\x1b" not in demo.stdout and "\r" not in demo.stdout
    assert max(map(len, demo.stdout.splitlines())) <= 130
    assert demo.stderr == ""


def test_demo_table_shows_sharing_and_paging(demo: Any) -> None:
    rows = {}
    for line in demo.stdout.splitlines():
        found = re.match(r" *(\d+) +(\w+) +(.+?)  +(\d+) +(\d+) +(\d+) +(\d+) +(device|host|-) +(\d+) +(\d+) *$", line)
        if found:
            rows[int(found[1])] = [int(found[column]) for column in (4, 5, 6, 7)] + [found[8]]
    assert sorted(rows) == list(range(1, len(conversations.PLOT) + 1))
    system = rows[2][1]
    assert system > 1000 and rows[1][2] == 0
    for prompt, matched, reused, computed, _ in [rows[number] for number in sorted(rows) if number > 1]:
        assert system <= reused <= matched <= prompt and computed == prompt - reused
    assert any(row[4] == "host" for row in rows.values())
    assert rows[len(rows)][3] == 1  # an exact repeat costs one token


@pytest.fixture
def short_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two questions, by the names of those that stay open: what is looked at lies around the conversations."""
    names = zip(conversations.PLOT, ("anna 4", "chloe 1b"))
    monkeypatch.setattr(conversations, "PLOT", tuple(dataclasses.replace(turn, label=name) for turn, name in names))


@pytest.mark.usefixtures("short_plot")
def test_demo_fails_where_runs_differ_by_more_than_allowed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conversations, "TOLERANCE", {"float16": -1.0})
    assert conversations.main(["--model", "tiny", "--tokens", "1", "--plain"]) == 1
    assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith("DIFFERENT: ")


@pytest.mark.parametrize(
    "kind", [pytest.param("window", marks=pytest.mark.soak), pytest.param("hybrid", marks=pytest.mark.ci)]
)
def test_demo_plays_with_every_kind_of_model(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = kv.models.load(plot.TINY).tokenizer
    model = random_model(kind, vocab_size=tokenizer.vocab_size)
    model.tokenizer = tokenizer
    monkeypatch.setattr(kv.models, "load", lambda *_, **__: model)
    assert conversations.main(["--model", "tiny", "--tokens", "4", "--plain", "--dtype", "float32"]) == 0
    assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith("same: ")


@pytest.mark.usefixtures("short_plot")
def test_demo_says_which_model_it_plays_with_where_the_usual_one_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kv.models.default, "found", lambda: None)
    assert conversations.main(["--tokens", "1", "--plain"]) == 0
    assert "python -m kvtrie download" in capsys.readouterr().out


def test_demo_tells_models_that_were_not_trained_for_it_what_to_do(tmp_path: Path) -> None:
    own = plot.system_transcript(plot.TINY).messages[0]["content"]
    told = plot.system_transcript(tmp_path).messages[0]["content"]
    assert told.endswith(own) and told.startswith(plot.INSTRUCTIONS.read_text(encoding="utf-8").strip())


def test_demo_says_what_is_wrong_with_its_arguments() -> None:
    result = run("examples/conversations.py", "--model", "no/such/folder")
    assert result.returncode == 2
    assert "FormatError" in result.stdout
    assert "no/such/folder" in result.stdout
    assert "Traceback" not in result.stderr


def test_demo_verdict_finds_what_differs() -> None:
    print("seed 7")
    cold = np.random.default_rng(7).standard_normal((5, 50)).astype(np.float32)
    verdict = conversations.Verdict(1e-3)
    assert verdict.compare("same", cold.copy(), cold) == 0.0 and not verdict.failures
    verdict.compare("a little", cold * np.float32(1.01), cold)
    assert len(verdict.failures) == 1 and "logits differ" in verdict.failures[0]
    verdict.compare("another token", np.roll(cold, 1, axis=-1), cold)
    assert any("another token at answer position 0" in failure for failure in verdict.failures)
    broken = cold.copy()
    broken[2, 3] = np.nan
    before = len(verdict.failures)
    verdict.compare("nan", broken, cold)
    assert len(verdict.failures) > before


def test_demo_verdict_does_not_judge_near_ties() -> None:
    cold = np.zeros((1, 4), np.float32)
    cold[0, :2] = [1.0, 0.9995]
    warm = cold[:, [1, 0, 2, 3]]
    verdict = conversations.Verdict(1e-3)
    verdict.compare("tie", warm, cold)
    assert verdict.near_ties == 1 and verdict.different == 0 and not verdict.failures


class LetterTokenizer:
    """One token a character; `template` lays messages out."""

    chat_template: Optional[str] = "yes"

    def __init__(self, template: Callable[[Sequence[dict[str, str]]], str]) -> None:
        self.template = template

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **_: object) -> str:
        return self.template(messages)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, tokens))


def test_demo_keeps_the_tokens_of_earlier_turns() -> None:
    tokenizer = LetterTokenizer(lambda messages: "".join(f"<{m['role'][0]}:{m['content']}" for m in messages) + "<a:")
    first = plot.Transcript(({"role": "system", "content": "rules"},), "", ()).ask(tokenizer, "one?")
    assert tokenizer.decode(first.tokens) == "<s:rules<u:one?<a:"
    second = first.answer(tokenizer, [ord("y")]).ask(tokenizer, "two?")
    assert tokenizer.decode(second.tokens) == "<s:rules<u:one?<a:y<u:two?<a:"
    assert second.tokens[: len(first.tokens)] == first.tokens


def test_demo_keeps_the_tokens_of_a_model_without_a_chat_template() -> None:
    tokenizer = LetterTokenizer(lambda _: "never asked")
    tokenizer.chat_template = None
    first = plot.Transcript(({"role": "system", "content": "rules"},), "", ()).ask(tokenizer, "one?")
    second = first.answer(tokenizer, [ord("y")]).ask(tokenizer, "two?")
    assert tokenizer.decode(second.tokens) == "System: rules\n\nUser: one?\n\nAssistant:y\n\nUser: two?\n\nAssistant:"
    assert second.tokens[: len(first.tokens)] == first.tokens


def test_demo_encodes_anew_where_a_template_rewrites_the_past() -> None:
    tokenizer = LetterTokenizer(lambda messages: f"{len(messages)}:" + "|".join(m["content"] for m in messages))
    first = plot.Transcript(({"role": "system", "content": "rules"},), "", ()).ask(tokenizer, "one?")
    second = first.answer(tokenizer, [ord("y")]).ask(tokenizer, "two?")
    assert tokenizer.decode(second.tokens) == "4:rules|one?|y|two?"


# --- the texts --------------------------------------------------------------------------------------------------------


# Programs of their own in one process, each with names of its own: imports take longer than most of them.
EACH = """
import json, sys, traceback
for name, program in json.load(sys.stdin):
    try:
        exec(compile(program, name, "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        sys.exit(name)
"""


def test_code_in_the_texts_runs() -> None:
    """The Python blocks of each text, one after the other in one program."""
    programs = [(path.name, "\n".join(blocks)) for path in TEXTS if (blocks := snippets(path))]
    assert len(programs) > 12
    result = run_python(
        "-W", "error", "-c", EACH, cwd=ROOT, environment={"PYTHONIOENCODING": "utf-8"}, input=json.dumps(programs)
    )
    assert result.returncode == 0, result.stderr
