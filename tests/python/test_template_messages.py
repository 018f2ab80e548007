"""How messages are passed to a chat template: in the form that it reads, and never as what Python calls them."""

from __future__ import annotations

import dataclasses
import enum
import json
import warnings
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models

import kvtrie as kv
from kvtrie.models.chat_template import ChatTemplate
from kvtrie.models.tokenizer import Tokenizer
from small_templates import TEMPLATES
from template_conversations import call, parts

RAW = tokenizers.Tokenizer(models.BPE())
QUESTION = {"role": "user", "content": "Which city?"}
CALLING = {"role": "assistant", "content": None, "tool_calls": [call("f", '{"a":1}')]}
RESULT = {"role": "tool", "tool_call_id": "call00000", "content": "Lima"}


def prompt(template: str, *messages: Any, **variables: Any) -> str:
    tokenizer = Tokenizer(RAW, special={"bos_token": "<s>", "eos_token": "</s>"}, chat_template=template)
    return tokenizer.apply_chat_template(messages, tokenize=False, **variables)


# ---- content ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["Which city?", parts("Which ", "city?")])
@pytest.mark.parametrize("name", ["plain", "parts only", "parts of users only", "either"])
def test_content_is_read_as_a_text_and_in_parts(name: str, content: Any) -> None:
    text = prompt(TEMPLATES[name], {"role": "user", "content": content})
    assert "Which city?" in text.replace("Which \ncity?", "Which city?") and "{" not in text


def test_what_reads_both_gets_what_came() -> None:
    template = (
        "{% for m in messages %}{{ m.content if m.content is string else m.content|map(attribute='text')|join('|') }}"
    )
    template += "{% endfor %}"
    assert prompt(template, {"role": "user", "content": parts("a", "b")}) == "a|b"
    assert prompt(template, {"role": "user", "content": "ab"}) == "ab"


def test_a_part_that_is_no_text_is_refused_where_content_is_one_text() -> None:
    picture = {"role": "user", "content": [*parts("What is it?"), {"type": "image", "image": object()}]}
    with pytest.raises(
        kv.errors.ArgumentError, match=r"^\[tokenizer\] messages\[0\]\.content\[1\]: got a part of type 'image'"
    ):
        prompt(TEMPLATES["plain"], picture)
    assert prompt(TEMPLATES["either"], picture) == "<user>What is it?<image></user>\n"
    with pytest.raises(kv.errors.ArgumentError, match=r"messages\[0\]\.content\[0\]\.text: got None"):
        prompt(TEMPLATES["either"], {"role": "user", "content": [{"type": "text", "text": None}]})


def test_an_empty_turn_is_refused_by_name() -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content if m.role == 'user' }}</{{ m.role }}>{% endfor %}"
    answer = {"role": "assistant", "content": "To the sea."}
    with pytest.raises(
        kv.errors.ArgumentError, match=r"^\[tokenizer\] messages\[1\]\.content: got .*'assistant' message"
    ):
        prompt(template, QUESTION, answer, QUESTION)
    assert prompt(template, QUESTION, {"role": "assistant", "content": " "}) == (
        "<user>Which city?</user><assistant></assistant>"
    )


def test_parts_are_put_together_where_the_first_alone_is_read() -> None:
    first = "{% for m in messages %}{{ m.role }}: {{ m.content[0].text }}\n{% endfor %}"
    either = first.replace("m.content[", "m.content if m.content is string else m.content[")
    for template in (first, either):
        for content in ("Which city?", parts("Which city?"), parts("Which ", "city?")):
            assert prompt(template, {"role": "user", "content": content}) == "user: Which city?\n"
    sentences = ChatTemplate(either).wants().sentences()
    assert sentences[0].endswith("messages as one text, or its first part")


def test_a_part_that_is_not_read_is_refused_by_name() -> None:
    """Of three, one is left out, which no probe looks for."""
    template = "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{{ part.text if loop.index != 3 }}"
    template += "{% endfor %}{% endfor %}"
    with pytest.raises(
        kv.errors.ArgumentError, match=r"^\[tokenizer\] messages\[0\]\.content\[2\]: got .*'user' message"
    ):
        prompt(template, {"role": "user", "content": parts("a b c", "d e f", "g h i", "j k l")})


def test_content_may_become_another_text() -> None:
    shouted = "{% for m in messages %}<{{ m.content|upper }}>{% endfor %}"
    assert prompt(shouted, QUESTION, {"role": "tool", "content": "{x}"}) == "<WHICH CITY?><{X}>"
    assert prompt(shouted, {"role": "user", "content": parts("Which ", "city?")}) == "<WHICH CITY?>"
    counted = "{% for m in messages %}<{{ m.content|length }}>{% endfor %}"
    assert prompt(counted, QUESTION) == "<11>"
    thought = {"role": "assistant", "content": "<think>a</think>"}
    assert prompt(TEMPLATES["thoughts"], QUESTION, thought, QUESTION).count("assistant|") == 1


def test_a_role_that_is_left_out_is_told_once() -> None:
    tokenizer = Tokenizer(RAW, chat_template=TEMPLATES["no tools, no system"])
    messages = [{"role": "system", "content": "Be brief."}, QUESTION, CALLING, RESULT]
    with pytest.warns(kv.errors.IgnoredWarning) as told:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "Q: Which city?\nA: \n"
    assert [str(each.message).split(":")[1].strip() for each in told] == ["messages", "messages"] or len(told) == 3
    assert {"'system'", "'tool'"} <= {word for each in told for word in str(each.message).replace(":", " ").split()}
    assert all(each.filename == __file__ for each in told)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer.apply_chat_template(messages, tokenize=False)


# ---- tool calls ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ['{"a":1}', {"a": 1}])
def test_arguments_are_an_object_or_the_text_that_came(arguments: Any) -> None:
    calling = {"role": "assistant", "content": "", "tool_calls": [call("f", arguments)]}
    same = arguments if isinstance(arguments, str) else json.dumps(arguments)
    for name in ("adds arguments", "prints arguments"):
        assert same in prompt(TEMPLATES[name], QUESTION, calling, RESULT)
    assert "<a>1</a>" in prompt(TEMPLATES["goes through arguments"], QUESTION, calling, RESULT)
    assert f"f{same}" in prompt(TEMPLATES["either"], QUESTION, calling, RESULT)


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments|tojson }}"
    )
    template += "{% endfor %}{% endfor %}"
    for arguments, text in (("{", '"{"'), ("", "{}"), ("[" * 10_000, json.dumps("[" * 10_000)), ("3", "3")):
        calling = {"role": "assistant", "content": "", "tool_calls": [call("f", arguments)]}
        assert prompt(template, QUESTION, calling) == f"Which city?{text}"
    bare = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": '{"a": 1}'}]}
    assert '"a": 1' in prompt("{% for m in messages %}{{ m|tojson }}{% endfor %}", QUESTION, bare)


def test_no_content_beside_calls_is_absent_or_empty_and_never_a_word() -> None:
    for name, template in TEMPLATES.items():
        if name in ("alternating", "thoughts"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", kv.errors.IgnoredWarning)
            assert "None" not in prompt(template, QUESTION, CALLING, RESULT), name
    with pytest.raises(kv.errors.ArgumentError, match="refused the messages"):
        prompt("{% for m in messages %}{{ m.content + '' }}{% endfor %}", {"role": "user", "content": None})


# ---- values ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Said:
    role: str
    content: Any
    name: str | None = None


class Model:
    """As pydantic's."""

    def model_dump(self) -> dict[str, Any]:
        return {"role": "user", "content": "d", "name": None}


class Role(str, enum.Enum):
    USER = "user"


def test_a_template_sees_plain_values_alone() -> None:
    template = "{% for m in messages %}{{ m|tojson }}{% endfor %}{{ n }}{{ f }}"
    text = prompt(
        template,
        Said("user", "c"),
        Model(),
        {"role": Role.USER, "content": np.str_("e")},
        n=np.int64(3),
        f=np.float32(0.5),
    )
    assert text == (
        '{"role": "user", "content": "c"}{"role": "user", "content": "d"}{"role": "user", "content": "e"}30.5'
    )
    for wrong, where in (({"x": object()}, r"messages\[0\]\.x"), ({"content": np.zeros(2)}, r"messages\[0\]\.content")):
        with pytest.raises(kv.errors.ArgumentTypeError, match=rf"^\[tokenizer\] {where}: got "):
            prompt(template, {"role": "user", **wrong})
    for variables, where in (
        ({"n": len}, "n"),
        ({"tools": [len]}, r"tools\[0\]"),
        ({"documents": ["a"]}, r"documents\[0\]"),
    ):
        with pytest.raises(kv.errors.ArgumentTypeError, match=rf"^\[tokenizer\] {where}: got "):
            prompt(template, QUESTION, **variables)
    with pytest.raises(
        kv.errors.ArgumentTypeError, match=r"^\[tokenizer\] messages\[1\]: got 'b' \(str\), allowed a message"
    ):
        prompt(template, QUESTION, "b")


def test_values_that_contain_themselves_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for call_it in (
        lambda: prompt("{{ messages|length }}", {"role": "user", "content": endless}),
        lambda: prompt("{{ messages|length }}", QUESTION, n=endless),
    ):
        with pytest.raises(kv.errors.ArgumentError, match=r"contain themselves, allowed trees"):
            call_it()


def test_reasoning_has_each_of_its_names() -> None:
    for name in ("reasoning_content", "thinking", "reasoning"):
        answer = {"role": "assistant", "content": "So.", name: "It is late."}
        assert "SO.(It is late.)" in prompt(TEMPLATES["a program"], QUESTION, answer).replace("So.", "SO.")
        assert "It is late." in prompt(
            "{% for m in messages %}{{ m.content }}{{ m.thinking }}{% endfor %}", QUESTION, answer
        )


@pytest.mark.parametrize("name", ["continue_final_message", "return_dict", "padding", "max_length"])
def test_arguments_of_transformers_that_are_none_here_are_refused(name: str) -> None:
    with pytest.raises(kv.errors.ArgumentError, match=rf"^\[tokenizer\] {name}: got True .*, allowed nothing"):
        prompt(TEMPLATES["plain"], QUESTION, **{name: True})
    assert prompt(TEMPLATES["plain"], QUESTION, **{name: False}) == "<s><|user|>Which city?"
    own = "{{ messages[0].content }}{{ " + name + " }}"
    assert prompt(own, QUESTION, **{name: 7}) == "Which city?7"


# ---- what a template wants -------------------------------------------------------------------------------------------


def test_what_a_template_wants_is_said_in_words() -> None:
    wants = ChatTemplate(TEMPLATES["goes through arguments"]).wants()
    assert (wants.arguments, wants.absent_content, wants.tools) == ("object", True, False)
    assert wants.sentences() == [
        "reads the content of system, developer, user, assistant and tool messages as one text",
        "takes no notice of the descriptions of tools",
        "reads the arguments of tool calls as an object",
        "takes no notice of documents",
        "leaves out the reasoning of an answer",
        "takes no notice of add_generation_prompt",
    ]
    assert "may ask for eos_token" in ChatTemplate(TEMPLATES["parts only"]).wants().sentences()
    assert "refuses developer and tool messages" in ChatTemplate(TEMPLATES["alternating"]).wants().sentences()
    assert ChatTemplate("{{ tools|tojson }}").wants().tools


def test_a_probe_of_an_endless_template_ends() -> None:
    source = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    template = ChatTemplate(source)
    assert set(template.wants().content.values()) == {"unknown"} and template.wants().arguments == "unknown"
    with pytest.raises(kv.errors.ArgumentError, match="chat template: got more than"):
        template.render({"messages": template.prepared([QUESTION])})
