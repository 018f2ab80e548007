"""Reasoning, text and calls in a model's answer, told apart whatever the cuts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrie.thinking.reasoning import reasoning_of

THINKS = "{{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' }}"


def split(pieces: Sequence[str], prompt_end: str = "assistant\n", template: str = THINKS) -> tuple[str, str]:
    reader = reasoning_of(template, prompt_end)
    assert reader is not None
    said = [each for piece in pieces for each in reader.feed(piece)] + reader.finish()
    assert all(text for _, text in said)
    kinds = [kind for kind, _ in said]
    assert kinds == sorted(kinds)  # "reasoning" comes first
    return tuple("".join(text for kind, text in said if kind == wanted) for wanted in ("reasoning", "text"))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("said", "prompt_end", "parts"),
    [
        ("<think>\nWhy?\n\nSo.\n</think>\n\nYes.\n", "assistant\n", ("Why?\n\nSo.", "Yes.\n")),
        ("\n <think>a</think>b", "assistant\n", ("a", "b")),
        ("Why?\n</think>\n\nYes.", "assistant\n<think>\n", ("Why?", "Yes.")),
        ("cut <", "assistant\n<think>", ("cut <", "")),
        ("<think>cut </thin", "assistant\n", ("cut </thin", "")),
        ("<think>\n\n</think>\n\nYes.", "assistant\n", ("", "Yes.")),
        ("Yes <think>no</think>", "assistant\n", ("", "Yes <think>no</think>")),
        ("\n\nYes</think>", "<think>\n\n</think>\n\n", ("", "\n\nYes</think>")),
        ("  <thi", "assistant\n", ("", "  <thi")),
        ("<think>a</think>b<think>c</think>", "user<think>x<|end|>assistant\n", ("a", "b<think>c</think>")),
        ("", "assistant\n", ("", "")),
    ],
)
def test_reasoning_is_told_from_text(said: str, prompt_end: str, parts: tuple[str, str]) -> None:
    for size in (1, 3, max(1, len(said))):
        assert split([said[at : at + size] for at in range(0, len(said), size)], prompt_end) == parts


def test_only_templates_that_reason_have_a_reader() -> None:
    assert reasoning_of(None, "<think>") is None
    assert reasoning_of("{{ messages }}", "<think>") is None
    assert split(["[THINK]a[/THINK]b"], template="[THINK]{{ x }}[/THINK]") == ("a", "b")
    assert split(["<|channel>thought\na\n<channel|>b"], template="<|channel>thought{{ x }}<channel|>") == ("a", "b")
    assert split(["<seed:think>a</seed:think>b"], template="<seed:think>{{ x }}</seed:think>") == ("a", "b")


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<", "</thi", "nk>", "\n", "\n\n", " ", "a", "\u65e5"]), max_size=12
    ),
    st.lists(st.integers(0, 60), max_size=12),
    st.sampled_from(["assistant\n", "<think>\n", "<think></think>\n"]),
)
def test_cuts_do_not_change_reasoning(parts: list[str], cuts: list[int], prompt_end: str) -> None:
    said = "".join(parts)
    ends = sorted(min(cut, len(said)) for cut in cuts)
    pieces = [said[start:end] for start, end in zip([0, *ends], [*ends, len(said)])]
    found = split([said], prompt_end)
    assert split(pieces, prompt_end) == split(list(said), prompt_end) == found
    if "<think>" not in said and prompt_end != "<think>\n":
        assert found == ("", said)


# ---- channels --------------------------------------------------------------------------------------------------------

CHANNELS = "{{- '<|start|>' + role + '<|channel|>' + channel + '<|message|>' }}"
START, CALL = "<|start|>assistant", "<|channel|>commentary to=functions.f<|message|>"
SAID = [
    ("<|channel|>analysis<|message|>Why?<|end|>" + START + "<|channel|>final<|message|>Yes.<|return|>", "Why?", "Yes."),
    ("<|channel|>final<|message|>Yes.", "", "Yes."),
    ("<|channel|>analysis<|message|>cut <|en", "cut <|en", ""),
    ("<|channel|>analysis<|message|>a<|end|>" + START + "<|channel|>fin", "a", ""),
    (
        "<|channel|>analysis<|message|>a<|end|>"
        + START
        + "<|channel|>commentary<|message|>Now.<|end|>"
        + START
        + '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>',
        "a",
        "Now." + CALL + '{"x": 1}<|call|>',
    ),
    (' to=functions.f<|channel|>commentary json<|message|>{"x": 1}', "", CALL + '{"x": 1}'),
    ("<|channel|>analysis to=functions.f<|message|>{}<|call|>", "", CALL + "{}<|call|>"),
    ("<|channel|>analysis to=python code<|message|>1 + 1<|call|>", "1 + 1", ""),
    ("A model that writes none of it: <|message|>", "", "A model that writes none of it: <|message|>"),
    ("<|chan", "", "<|chan"),
    ("", "", ""),
]


def channels(pieces: Sequence[str], prompt_end: str = START, begun: str = "") -> tuple[str, str]:
    reader = reasoning_of(CHANNELS, prompt_end, begun)
    assert reader is not None
    said = [each for piece in pieces for each in reader.feed(piece)] + reader.finish()
    assert all(text for _, text in said)
    return tuple("".join(text for kind, text in said if kind == wanted) for wanted in ("reasoning", "text"))  # type: ignore[return-value]


@pytest.mark.parametrize(("said", "reasoning", "text"), SAID)
def test_channels_are_told_apart(said: str, reasoning: str, text: str) -> None:
    for size in (1, 3, max(1, len(said))):
        assert channels([said[at : at + size] for at in range(0, len(said), size)]) == (reasoning, text)


def test_a_prompt_may_end_within_a_channel() -> None:
    assert channels(["So.<|end|>", START + "<|channel|>final<|message|>Yes."], "<|channel|>analysis<|message|>") == (
        "So.",
        "Yes.",
    )
    assert channels(["on."], START, "<|channel|>final<|message|>Go ") == ("", "on.")


@given(
    st.lists(
        st.sampled_from([
            "<|start|>", "assistant", "<|channel|>", "analysis", "final", "commentary", " to=functions.f",
            "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|", "{}", "a", "\n", " ",
        ]),
        max_size=14,
    ),
    st.lists(st.integers(0, 90), max_size=12),
)  # fmt: skip
def test_cuts_do_not_change_channels(parts: list[str], cuts: list[int]) -> None:
    said = "".join(parts)
    ends = sorted(min(cut, len(said)) for cut in cuts)
    pieces = [said[start:end] for start, end in zip([0, *ends], [*ends, len(said)])]
    assert channels(pieces) == channels(list(said)) == channels([said])
    if "<|" not in said and " to=" not in said:
        assert channels([said]) == ("", said)
