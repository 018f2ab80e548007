"""The chat over a model, in process: what is reused, branches, the limit of the context, interrupts, the disk."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from kvtrie.cli import main
from kvtrie.cli.chat.answers import Answers
from kvtrie.cli.chat.commands import COMMANDS, Chat
from kvtrie.cli.chat.screen import Screen
from kvtrie.cli.chat.settings import Settings
from random_models import random_model
from reference_llama import random_llama, save_checkpoint
from text_tokenizer import VOCAB, save_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(folder, *random_llama(3, vocab=VOCAB, eos_token_id=VOCAB - 1))
    return save_tokenizer(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return kv.models.load(folder)


class Talk:
    """A chat whose answers are read back. ``model`` may be any callable with a tokenizer and a configuration."""

    def __init__(
        self,
        model: Any,
        *,
        context: int = 2048,
        system: str = "",
        raw: bool = False,
        max_tokens: int = 6,
        temperature: float = 0.0,
        **cache: Any,
    ) -> None:
        self.out = io.StringIO()
        self.cache = kv.PrefixCache(model.caches(capacity=context, dtype="float32"), **cache)
        self.answers = Answers(model, self.cache, context, raw)
        settings = Settings(kv.Sampling(temperature=temperature, seed=1), max_tokens)
        self.chat = Chat(self.answers, settings, Screen(self.out), system)

    def say(self, line: str) -> str:
        self.out.seek(0)
        self.out.truncate()
        assert self.chat.handle(line)
        return self.out.getvalue()

    @property
    def tokens(self) -> list[int]:
        """Those of the last prompt and of the current branch's last answer."""
        assert self.answers.last is not None
        return self.answers.last.tokens + list(self.chat.conversation.turn().tokens)

    @property
    def prompt(self) -> int:
        """Tokens of the last prompt."""
        assert self.answers.last is not None
        return len(self.answers.last.tokens)

    @property
    def last(self) -> str:
        """The last answer."""
        return self.chat.conversation.turn().answer

    def close(self) -> None:
        self.chat.close()
        assert self.cache.check() == []
        assert self.cache.stats()["sessions"] == 0
        self.cache.close()


@pytest.fixture
def talk(model: Any) -> Iterator[Talk]:
    talk = Talk(model)
    yield talk
    talk.close()


def figures(text: str) -> tuple[int, int]:
    """(reused, computed) of an answer's line."""
    found = re.findall(r"reused ([\d,]+), computed ([\d,]+)", text)
    assert len(found) == 1, text
    reused, computed = (int(number.replace(",", "")) for number in found[0])
    return reused, computed


def run(*argv: str) -> tuple[int, str]:
    out = io.StringIO()
    return main(argv, out), out.getvalue()


# --- the command line -------------------------------------------------------------------------------------------------


def test_chat_needs_a_checkpoint_with_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("chat", str(tmp_path / "absent"))[0] == 1
    assert "absent" in capsys.readouterr().err
    save_checkpoint(tmp_path, *random_llama(3, vocab=VOCAB))
    assert run("chat", str(tmp_path))[0] == 1
    assert "tokenizer.json" in capsys.readouterr().err
    save_tokenizer(tmp_path, template=False)
    assert run("chat", str(tmp_path))[0] == 1
    assert "--raw" in capsys.readouterr().err


@pytest.mark.parametrize(("raw", "dtype"), [(True, "float32"), pytest.param(False, "q8_0", marks=pytest.mark.soak)])
def test_chat_from_standard_input(folder: Path, raw: bool, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n\n/tree\n/stats\nmore\n/quit\nnever\n"))
    options = ["--max-tokens", "4", "--capacity", "128", "--dtype", dtype, *(["--raw"] if raw else [])]
    code, text = run("chat", "--model", str(folder), *options)
    assert code == 0 and "error" not in text
    assert f" MiB of {dtype} weights" in text
    assert text.count(" | first token ") == 2


def test_chat_with_a_draft_model_says_the_same(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over turns, behind a shift of the context, too; one with other tokens is refused before the first line. Named
    drafters, too: each is asked before the model."""

    def start(*options: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello, this is a question\nand more\nand again\n"))
        own = ["--max-tokens", "40", "--context", "128", "--raw", "--temperature", "0"]
        code, text = run("chat", str(folder), *own, *options)
        return code, [line.split("|")[0] for line in text.splitlines()]

    plain = start()
    assert plain[0] == 0
    assert start("--draft-model", str(folder)) == plain
    asked: list[str] = []
    for name in ("tree", "suffix"):
        drafter = getattr(kv.draft, f"_{name}")
        monkeypatch.setattr(
            kv.draft, f"_{name}", lambda *given, name=name, own=drafter: asked.append(name) or own(*given)
        )
    assert start("--draft", "tree,prompt,suffix", "--draft-model", str(folder)) == plain
    assert {*asked} == {"tree", "suffix"}
    for names, refused in (("tree,suffixes", "[chat] --draft: got 'suffixes'"), ("mtp", "mtp: got llama, allowed")):
        assert start("--draft", names)[0] == 1
        assert refused in capsys.readouterr().err
    save_checkpoint(tmp_path, *random_llama(3, vocab=VOCAB + 1))
    assert start("--draft-model", str(tmp_path))[0] == 1
    assert f"got a draft model of {VOCAB + 1} tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        ("--temperature", "-1"),
        ("--top-p", "2"),
        ("--max-tokens", "0"),
        ("--context", "100000"),
        ("--context", "3"),
        ("--host-bytes", "some"),
    ],
)
def test_wrong_options_name_what_is_allowed(
    folder: Path, wrong: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run("chat", str(folder), *wrong)[0] == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and wrong[1] in error and "allowed" in error


def test_ctrl_c_while_a_model_loads_is_an_exit_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kv.models, "load", load)
    assert run("chat", str(folder))[0] == 130


# --- turns ------------------------------------------------------------------------------------------------------------


def test_second_turn_reuses_the_first(talk: Talk) -> None:
    reused, computed = figures(talk.say("hello"))
    assert (reused, computed) == (0, talk.prompt)
    said = len(talk.tokens)
    reused, computed = figures(talk.say("and again"))
    assert reused == said - 1 and computed == talk.prompt - reused


def test_undo_forgets_the_turn(talk: Talk) -> None:
    first = talk.say("hello")
    before = talk.tokens
    talk.say("something else")
    assert "undone: something else" in talk.say("/undo")
    talk.say("/undo")
    assert "nothing was asked yet" in talk.say("/undo")
    again = talk.say("hello")
    assert again.splitlines()[0] == first.splitlines()[0] and talk.tokens == before


def test_retry_computes_one_token(talk: Talk) -> None:
    talk.say("hello")
    before = talk.tokens
    again = talk.say("/retry")
    assert figures(again) == (talk.prompt - 1, 1)
    assert talk.tokens == before and "temperature 0" in again  # greedy: the same answer
    assert "what stood there is now branch main.1" in again


def test_retry_draws_anew(model: Any) -> None:
    talk = Talk(model, temperature=2.0, max_tokens=12)
    talk.say("hello")
    answers, prompt = [talk.tokens], talk.prompt
    for _ in range(3):
        talk.say("/retry")
        answers.append(talk.tokens)
    assert len({tuple(answer) for answer in answers}) == 4
    talk.say("/switch main.1")
    assert list(talk.chat.conversation.turn().tokens) == answers[0][prompt:]
    talk.close()


def test_edit_asks_an_earlier_question_in_other_words(talk: Talk) -> None:
    for question in ("one", "two", "three"):
        talk.say(question)
    text = talk.say("/edit 2 zwei")
    assert "is now branch main.1" in text
    assert figures(text)[0] > 0
    assert [turn.question for turn in talk.chat.conversation.turns] == ["one", "zwei"]
    talk.say("/edit deux")
    assert [turn.question for turn in talk.chat.conversation.turns] == ["one", "deux"]
    assert "allowed the new question" in talk.say("/edit")
    assert "question: got 7, allowed 1 to 2" in talk.say("/edit 7 x")
    talk.say("/switch main.1")
    assert [turn.question for turn in talk.chat.conversation.turns] == ["one", "two", "three"]


def test_branches_do_not_disturb_each_other(talk: Talk) -> None:
    talk.say("hello")
    said = talk.tokens
    assert "branch other goes on from here" in talk.say("/branch other")
    assert talk.chat.prompt == "other> "
    assert figures(talk.say("on the branch"))[0] == len(said) - 1
    assert "hello" in talk.say("/switch main")
    assert figures(talk.say("on the main line"))[0] >= len(said) - 1
    talk.say("/switch other")
    assert talk.chat.conversation.turn().question == "on the branch"
    assert "got 'other', allowed a new name" in talk.say("/branch other")
    assert "got 'nowhere', allowed main, other" in talk.say("/switch nowhere")
    assert "branches: main, other" in talk.say("/switch")
    talk.say("/delete main")
    assert "branches: other" in talk.say("/switch")


@pytest.mark.parametrize("kind", [pytest.param("window", marks=pytest.mark.ci), "hybrid"])
def test_every_kind_of_model_chats(model: Any, kind: str) -> None:
    """Turns, /undo, /retry and branches where not every length can be restored; answers are those of a fresh chat."""
    other = random_model(kind, vocab_size=VOCAB)
    other.tokenizer = model.tokenizer
    talk = Talk(other)
    talk.say("hello")
    said = len(talk.tokens)
    assert figures(talk.say("and again"))[0] == said - 1  # all but the token that was recorded last
    after_two = talk.tokens
    talk.say("/undo")
    talk.say("and again")
    assert talk.tokens == after_two
    assert figures(talk.say("/retry"))[1] == 1
    talk.say("/branch other")
    talk.say("on the branch")
    assert "slots" in talk.say("/stats") or kind == "window"
    fresh = Talk(other)
    fresh.say("hello")
    fresh.say("and again")
    assert fresh.tokens == after_two
    talk.close()
    fresh.close()


def test_an_error_ends_the_turn_not_the_conversation(model: Any) -> None:
    talk = Talk(model, context=256)
    talk.say("hello")
    before = talk.tokens
    text = talk.say("x" * 500)
    assert "question: got" in text and "allowed up to 255" in text
    assert [turn.question for turn in talk.chat.conversation.turns] == ["hello"]
    talk.say("/undo")
    talk.say("hello")
    assert talk.tokens == before
    talk.close()


# --- the limit of the context -----------------------------------------------------------------------------------------


def test_at_the_limit_the_oldest_half_goes_and_that_is_said(model: Any) -> None:
    talk = Talk(model, context=128, system="sys", max_tokens=30)
    dropped = 0
    for number in range(12):
        text = talk.say(f"question {number}")
        assert "error" not in text and "first token" in text
        assert len(talk.chat.conversation.turns) == number + 1
        dropped += text.count("the context of 128 tokens is full: its oldest")
    assert dropped > 1
    opening = talk.answers.tokenizer.decode(talk.answers.last.tokens[:20])  # type: ignore[union-attr]
    assert opening.startswith("<|im_start|>system\nsys<|im_e")
    assert "belongs to this conversation alone" in " ".join(talk.say("/explain").split())
    for line in ("/retry", "/undo", "and then", "/branch b", "more", "/switch main", "still more", "/edit 1 other"):
        assert "error" not in talk.say(line)
    talk.close()


def test_a_shifted_conversation_goes_on_in_place(model: Any) -> None:
    talk = Talk(model, context=128, max_tokens=40)
    for _ in range(20):
        text = talk.say("question")
        assert talk.answers.last is not None and talk.prompt < 128
        if talk.answers.last.in_place:
            break
    else:
        pytest.fail("no shift")
    assert figures(text)[1] < talk.prompt
    talk.close()


@pytest.mark.parametrize("kind", [pytest.param("window", marks=pytest.mark.ci), "hybrid"])
def test_where_keys_cannot_move_the_rest_is_computed_again(model: Any, kind: str) -> None:
    other = random_model(kind, vocab_size=VOCAB)
    other.tokenizer = model.tokenizer
    talk = Talk(other, context=128, max_tokens=30)
    texts = [talk.say(f"question {number}") for number in range(6)]
    assert not any("error" in text for text in texts) and any("is full" in text for text in texts)
    assert len(talk.chat.conversation.turns) == 6
    talk.close()


def test_a_question_longer_than_half_of_the_context_stands_alone(model: Any) -> None:
    talk = Talk(model, context=256)
    talk.say("hello " * 8)
    talk.say("hello " * 8)
    assert "is full" in talk.say("y" * 200)
    assert talk.answers.last is not None
    assert "hello" not in talk.answers.tokenizer.decode(talk.answers.last.tokens)
    assert "error" not in talk.say("and on")
    talk.close()


def test_a_long_conversation_from_a_file_keeps_its_latest_half(model: Any, tmp_path: Path) -> None:
    rows = [{"role": role, "content": f"{role} {n}"} for n in range(40) for role in ("user", "assistant")]
    path = tmp_path / "long.json"
    path.write_text(json.dumps(rows))
    talk = Talk(model, context=256)
    talk.say(f"/load {path}")
    assert "is full" in talk.say("and now")
    assert talk.answers.last is not None
    text = talk.answers.tokenizer.decode(talk.answers.last.tokens)
    assert "assistant 39" in text and "assistant 3<" not in text and text.count("and now") == 1
    assert "error" not in talk.say("more")
    talk.close()


# --- interrupts -------------------------------------------------------------------------------------------------------


class Interrupting:
    """The model, but before its step of that number Ctrl-C is hit."""

    def __init__(self, model: Any, step: int) -> None:
        self._model, self.left = model, step
        self.config, self.tokenizer, self.end_tokens = model.config, model.tokenizer, model.end_tokens
        self.caches = model.caches

    def __call__(self, step: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self._model(step)


def test_ctrl_c_keeps_what_was_said(model: Any) -> None:
    whole = Talk(model)
    whole.say("hello")
    talk = Talk(Interrupting(model, 4))
    text = talk.say("hello")
    assert "| 3 tokens" in text and text.rstrip().endswith("| stopped")
    assert len(talk.chat.conversation.turns) == 1 and whole.last.startswith(talk.last)
    assert talk.tokens == whole.tokens[:-3]
    assert figures(talk.say("go on"))[0] == len(whole.tokens) - 4
    talk.close()
    whole.close()


def test_ctrl_c_before_the_first_word_leaves_no_turn(model: Any) -> None:
    talk = Talk(Interrupting(model, 2))
    question = "a question of two steps " * 30
    text = talk.say(question)
    assert "stopped before the first word" in text
    assert talk.chat.conversation.turns == []
    assert figures(talk.say(question))[0] >= 512  # of the step that was complete
    talk.close()


def test_a_model_that_fails_ends_the_turn_with_what_was_said(model: Any) -> None:
    class Failing(Interrupting):
        def __call__(self, step: Any) -> Any:
            try:
                return super().__call__(step)
            except KeyboardInterrupt:
                raise kv.errors.DeviceError("[device] out of order") from None

    talk = Talk(Failing(model, 4))
    assert "error: [device] out of order" in talk.say("hello")
    assert len(talk.chat.conversation.turn().tokens) == 3
    assert "error" not in talk.say("go on")
    talk.close()


# --- commands ---------------------------------------------------------------------------------------------------------


def test_every_command_is_listed_and_explained(talk: Talk) -> None:
    listed = talk.say("/help")
    assert max(map(len, listed.splitlines())) <= 79
    for name, command in COMMANDS.items():
        assert re.search(rf"^  /{name}\b", listed, re.M)
        told = talk.say(f"/help {name}")
        assert command.usage in told and len(told.splitlines()) >= 2


def test_unknown_commands_are_not_sent_to_the_model(talk: Talk) -> None:
    assert "did you mean /retry?" in talk.say("/retri")
    assert "/help lists them" in talk.say("/") and talk.chat.conversation.turns == []
    talk.say("//etc is a folder")
    assert talk.chat.conversation.turn().question == "/etc is a folder"


def test_tree_shows_texts_and_names(talk: Talk) -> None:
    talk.say("hello")
    talk.say("/branch other")
    talk.say("world")
    shown = talk.say("/tree")
    assert "1 > hello" in shown and "[main]" in shown and "2 > world" in shown and "[*other]" in shown


def test_explain_says_why(talk: Talk) -> None:
    assert "nothing was asked yet" in talk.say("/explain")
    talk.say("hello")
    assert "nothing that begins like it was computed before" in talk.say("/explain")
    talk.say("/retry")
    text = talk.say("/explain")
    reused = talk.prompt - 1
    assert f"{reused} reused, 1 computed" in text and "last_token" in text
    assert f"asked again now: {reused} tokens" in text
    talk.say("more")
    text = talk.say("/explain")
    assert "all that was known was reused" in text and "computed from" in text


def test_set_changes_how_answers_are_made(talk: Talk) -> None:
    talk.say("/set max_tokens 2")
    talk.say("hello")
    assert len(talk.chat.conversation.turn().tokens) == 2
    assert "temperature 1.5" in talk.say("/set temperature 1.5")
    assert talk.say("/set").count("\n") >= 10
    assert "got 3.0, allowed above 0 and up to 1" in talk.say("/set top_p 3")
    assert "got 'heat', allowed temperature, top_k" in talk.say("/set heat 3")


def test_what_is_loaded_and_cached_is_reused(talk: Talk, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    talk.say("hello")
    talk.say("/branch other")
    talk.say("world")
    said = talk.tokens
    assert "saved 2 turns" in talk.say(f"/save {path}")
    assert "loaded 2 turns; branches: main, other" in talk.say(f"/load {path}")
    assert figures(talk.say("more"))[0] == len(said) - 1
    path.write_text("{}")
    assert "error: [load] format" in talk.say(f"/load {path}")
    assert len(talk.chat.conversation.turns) == 3  # what was there stays
    for command in ("/save", "/load"):
        assert "allowed the name of a file" in talk.say(command)


def test_tokens_from_a_file_that_are_not_the_answer_are_not_used(talk: Talk, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    talk.say("hello")
    talk.say(f"/save {path}")
    saved = json.loads(path.read_text())
    for tokens in ([104, 105], [10**9]):
        saved["turns"][0]["tokens"] = tokens
        path.write_text(json.dumps(saved))
        talk.say(f"/load {path}")
        assert "error" not in talk.say("more")
        assert talk.answers.last is not None
        assert saved["turns"][0]["messages"][1]["content"] in talk.answers.tokenizer.decode(talk.answers.last.tokens)


def test_the_cache_is_shown(talk: Talk) -> None:
    talk.say("hello")
    assert "user" in talk.say("/cache") and "tok" in talk.say("/cache")
    assert "reused tokens" in talk.say("/stats")


# --- the disk ---------------------------------------------------------------------------------------------------------


def test_a_second_start_reuses_what_is_on_the_disk(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*lines: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code, text = run(
            "chat", str(folder), "--disk", str(tmp_path / "disk"), "--max-tokens", "4", "--temperature", "0",
            "--capacity", "512",
        )  # fmt: skip
        assert code == 0 and "error" not in text, text
        return text

    first = start("hello, this is a question", f"/save {tmp_path / 'chat.json'}")
    assert "known from before" not in first and figures(first)[0] == 0
    second = start(f"/load {tmp_path / 'chat.json'}", "and more")
    assert "tokens are known from before" in second
    assert figures(second)[0] == sum(figures(first)) + 3  # all but the token that was recorded last
