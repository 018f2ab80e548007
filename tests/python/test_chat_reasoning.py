"""A chat with a model that thinks: what is shown, what the next prompt has of it, and how it is kept from thinking."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from kvtrie.cli.chat.answers import Answers
from kvtrie.cli.chat.commands import Chat
from kvtrie.cli.chat.conversation import Conversation
from kvtrie.cli.chat.screen import Screen
from kvtrie.cli.chat.settings import Settings
from kvtrie.models.tokenizer import Tokenizer
from scripted_model import ScriptedModel
from serving import TINY

TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
THINKS = TURNS + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
REPEATS = THINKS.replace("{{ m.content", "{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content")
OPENED = "{# </think> #}" + TURNS + "{{ '<think>\n' }}"
CHANNELS = (
    "Reasoning: {{ reasoning_effort or 'medium' }}{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "<|start|>assistant"
)
OPENINGS = {CHANNELS: "?<|end|><|start|>assistant", OPENED: "<|assistant|><think>\n"}
MARKS = ["<|start|>", "<|channel|>", "<|message|>", "<|return|>"]
THOUGHT, SAID = "So [it] is.\n\nYes.", "It is so."
IN_CHANNELS = f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>{SAID}"


class Talk:
    """A chat with a model that says ``script`` behind the last words of every prompt, ``opening``."""

    def __init__(self, template: str, script: str, context: int = 2048, **options: Any) -> None:
        real = kv.models.load(TINY)
        for mark in MARKS if template == CHANNELS else ():
            real.tokenizer.raw.add_special_tokens([mark])
        real.tokenizer = Tokenizer(real.tokenizer.raw, special=real.tokenizer.special, chat_template=template)
        opening = options.pop("opening", OPENINGS.get(template, "<|assistant|>"))
        model = ScriptedModel(real, lambda _: script, opening)
        model.config.vocab_size = real.tokenizer.vocab_size
        if template == CHANNELS:
            model.end_tokens = (real.tokenizer.special_id("<|return|>"),)
        self.model, self.out = model, io.StringIO()
        self.cache = kv.PrefixCache(model.caches(capacity=context), host_bytes=0)
        self.answers = Answers(model, self.cache, context)  # type: ignore[arg-type]
        settings = Settings(kv.Sampling(temperature=0.0), options.pop("max_tokens", 200), **options)
        self.chat = Chat(self.answers, settings, Screen(self.out))

    def say(self, line: str) -> str:
        self.out.seek(0)
        self.out.truncate()
        assert self.chat.handle(line)
        return self.out.getvalue()

    @property
    def prompt(self) -> str:
        assert self.answers.last is not None
        return self.model.tokenizer.decode(self.answers.last.tokens)

    @property
    def turn(self) -> Any:
        return self.chat.conversation.turn()


@pytest.fixture
def talk() -> Iterator[Callable[..., Talk]]:
    made: list[Talk] = []

    def begin(*arguments: Any, **options: Any) -> Talk:
        made.append(Talk(*arguments, **options))
        return made[-1]

    yield begin
    for each in made:
        each.chat.close()
        assert each.cache.check() == [] and each.cache.stats()["sessions"] == 0
        each.cache.close()


SCRIPTS = [
    (THINKS, f"<think>\n{THOUGHT}\n</think>\n\n{SAID}"),
    (OPENED, f"{THOUGHT}\n</think>\n\n{SAID}"),
    (CHANNELS, IN_CHANNELS),
]


@pytest.mark.parametrize(("template", "script"), SCRIPTS, ids=["marked", "opened", "channels"])
def test_reasoning_is_shown_behind_a_bar_and_is_no_part_of_the_answer(
    talk: Any, template: str, script: str, tmp_path: Path
) -> None:
    chat = talk(template, script)
    shown = chat.say("Is it so?")
    assert shown.startswith("  | So [it] is.\n  |\n  | Yes.\nIt is so.\n  reused 0, computed ")
    assert (chat.turn.reasoning, chat.turn.answer) == (THOUGHT, SAID)
    again = chat.say("And now?")
    assert THOUGHT not in chat.prompt and SAID in chat.prompt and "think>So" not in chat.prompt
    assert again.startswith("  | So [it]")
    path = tmp_path / "chat.json"
    chat.say(f"/save {path}")
    last = json.loads(path.read_text())["turns"][0]["messages"][1]
    assert last == {"role": "assistant", "content": SAID, "reasoning_content": THOUGHT}
    chat.say(f"/load {path}")
    assert (chat.turn.reasoning, chat.turn.answer) == (THOUGHT, SAID)
    assert "error" not in chat.say("More?") and len(chat.chat.conversation.turns) == 3


def test_a_template_that_repeats_reasoning_gets_it_and_nothing_is_computed_again(talk: Any) -> None:
    chat = talk(REPEATS, f"<think>{THOUGHT}</think>{SAID}")
    chat.say("Is it so?")
    computed = len(chat.answers.last.tokens) + len(chat.turn.tokens)
    chat.say("And now?")
    assert f"<think>{THOUGHT}</think>{SAID}" in chat.prompt
    assert chat.answers.last.reused >= computed - 1


def test_tokens_of_a_file_serve_where_they_say_the_reasoning_too(talk: Any, tmp_path: Path) -> None:
    chat, path = talk(REPEATS, f"<think>{THOUGHT}</think>{SAID}"), tmp_path / "chat.json"
    chat.say("Is it so?")
    tokens = list(chat.turn.tokens)
    chat.say(f"/save {path}")
    chat.say(f"/load {path}")
    chat.say("And now?")
    prompt = chat.answers.last.tokens
    assert any(prompt[at : at + len(tokens)] == tokens for at in range(len(prompt)))
    path.write_text(path.read_text().replace("So [it] is.", "It was."))
    chat.say(f"/load {path}")
    chat.say("And now?")
    assert "<think>It was." in chat.prompt and "So [it]" not in chat.prompt


@pytest.mark.parametrize(("template", "script"), SCRIPTS, ids=["marked", "opened", "channels"])
def test_hidden_reasoning_is_one_line(talk: Any, template: str, script: str) -> None:
    chat = talk(template, script, reasoning="hidden")
    assert chat.say("Is it so?").startswith("  thinking ...\nIt is so.\n  reused")
    assert chat.turn.reasoning == THOUGHT
    chat.say("/set reasoning shown")
    assert chat.say("/retry").count("  | So [it] is.\n") == 1


def test_an_answer_that_ends_within_its_reasoning(talk: Any) -> None:
    chat = talk(THINKS, f"<think>\n{THOUGHT}\n</think>\n\n{SAID}", max_tokens=20)
    shown = chat.say("Is it so?")
    assert "the model ended without a word behind its reasoning" in shown and "cut at max_tokens 20" in shown
    assert THOUGHT.startswith(chat.turn.reasoning) and chat.turn.reasoning and not chat.turn.answer
    assert "error" not in chat.say("And now?")


def test_thinking_off_is_said_in_the_words_of_the_template(talk: Any) -> None:
    chat = talk(THINKS, SAID, opening="</think>\n\n")
    chat.say("/set thinking off")
    assert chat.say("Is it so?").startswith("It is so.\n")
    assert chat.prompt.endswith("<think>\n\n</think>\n\n")
    chat.say("/set thinking auto")
    chat.say("And now?")
    assert chat.prompt.endswith("<|assistant|>")
    channels = talk(CHANNELS, IN_CHANNELS, thinking="low")
    channels.say("Is it so?")
    assert "Reasoning: low" in channels.prompt


@pytest.mark.parametrize("context", [2048, 128])
def test_a_model_that_always_thinks_is_kept_from_it_once(talk: Any, context: int) -> None:
    """Also where the context is shifted in the middle of the answer: its reasoning is closed once, at its beginning."""
    chat = talk(OPENED, "word " * 60, context=context, thinking="off", max_tokens=250)
    shown = chat.say("Is it so?")
    assert chat.turn.reasoning == "" and "</think>" not in chat.turn.answer
    assert chat.model.tokenizer.decode(chat.turn.tokens).count("</think>") == 1
    assert ("is full" in shown) == (context == 128)
    assert not shown.startswith("  |") and "word word word" in shown


def test_words_that_a_model_does_not_know_are_refused_by_name(talk: Any) -> None:
    chat = talk(TURNS, SAID)
    assert "got 'on', allowed auto, off: this model's chat template knows no other" in _flat(
        chat.say("/set thinking on")
    )
    assert "got 'low', allowed auto, off:" in _flat(chat.say("/set thinking low"))
    assert chat.chat.settings.thinking == "auto"
    chat.say("/set thinking off")
    assert chat.say("Is it so?").startswith("It is so.\n")
    always = talk(OPENED, SAID)
    assert "got 'high', allowed auto, on, off:" in _flat(always.say("/set thinking high"))
    assert "got 'dim', allowed shown, hidden" in always.say("/set reasoning dim")
    assert "thinking auto (allowed: auto, on, off, minimal, low, medium, high)" in _flat(always.say("/set thinking"))


def _flat(text: str) -> str:
    return " ".join(text.split())


def test_reasoning_is_dim_where_there_are_colours() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def shown(**environment: str) -> str:
        out = Terminal()
        screen = Screen(out, {"TERM": "xterm", **environment})
        screen.answer([("reasoning", "so it"), ("reasoning", " is\nyes"), ("text", "It"), ("text", " is.")])
        return out.getvalue()

    plain = "  | so it is\n  | yes\nIt is.\n"
    assert shown(NO_COLOR="1") == plain
    dim = shown()
    assert dim.replace("\x1b[2m", "").replace("\x1b[0m", "") == plain and dim.startswith("\x1b[2m  | ")
    assert dim.endswith("\x1b[0mIt is.\n") and dim.count("\x1b[2m") == dim.count("\x1b[0m")


def test_reasoning_of_other_programs_files_is_read(tmp_path: Path) -> None:
    from kvtrie.cli.chat.files import from_json

    rows = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning": "c"},
    ]
    conversation = from_json(rows)
    assert isinstance(conversation, Conversation) and conversation.turn().reasoning == "c"
    with pytest.raises(kv.errors.FormatError, match="reasoning of assistant"):
        from_json([rows[0], {**rows[1], "reasoning": ["c"]}])
