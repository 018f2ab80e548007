"""Random conversations whose words look like special tokens, templates that do to them what templates do, tokenizers.

What a conversation says may hold whole special tokens, halves of them, and such as become one when a template joins,
cuts or lowers its words. The same seed gives the same conversations.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors, trainers

from hostile_texts import CORPUS
from kvtrie.models.tokenizer import Tokenizer
from tokenizer_folders import trained_pieces

# Of the families: ChatML, Llama 2, Phi, Gemma, DeepSeek; one with blanks, and one that takes blanks in.
MARKS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|system|>", "<|assistant|>", "<|tool|>"]
MARKS += ["<|end|>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "<\uff5cUser\uff5c>"]
MARKS += ["<\uff5cend\u2581of\u2581sentence\uff5c>", "<end of turn>", "<mask>"]
PLAIN = ["<think>", "</think>"]  # added, and not special
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def _added(raw: Any) -> Any:
    raw.add_special_tokens([AddedToken(each, normalized=False, lstrip=each == "<mask>") for each in MARKS])
    raw.add_tokens([AddedToken(each, normalized=False, special=False) for each in PLAIN])
    bos = raw.token_to_id("<s>")
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return raw


def byte_level() -> Any:
    """GPT-2's alphabet, and words as Qwen cuts them."""
    raw = tokenizers.Tokenizer(models.BPE())
    pattern = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        [CORPUS], trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    return _added(raw)


@lru_cache(maxsize=1)
def _pieces() -> str:
    """A SentencePiece vocabulary, of which no token is added yet, as JSON."""
    return json.dumps({**trained_pieces(CORPUS, 900), "added_tokens": []})


def sentence_piece(scheme: str) -> Any:
    """Llama's: "legacy" as its tokenizer.json has it, with a space behind special tokens, or a scheme of Metaspace."""
    raw = tokenizers.Tokenizer.from_str(_pieces())
    if scheme != "legacy":
        raw.normalizer = None  # type: ignore[assignment]
        raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    strip = [] if scheme == "never" else [decoders.Strip(" ", 1, 0)]
    raw.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return _added(raw)


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "byte-level": byte_level,
    **{f"pieces, {each}": (lambda each=each: sentence_piece(each)) for each in ("legacy", "first", "always", "never")},
}


@cache
def raw_of(name: str) -> Any:
    return TOKENIZERS[name]()


# ---- templates -------------------------------------------------------------------------------------------------------

_FRAMES = {
    "chatml": "'<|im_start|>' + m.role + '\\n' + {} + '<|im_end|>\\n'",
    "bos": "(bos_token if loop.first else '') + '<start_of_turn>' + m.role + '\\n' + {} + '<end_of_turn>\\n'",
    "inst": "('[INST] ' + {0} + ' [/INST]') if m.role == 'user' else (' ' + {0} + eos_token)",
    "pieces": "'<|' + m.role + '|>' + {} + '<|end|>'",
    "halves": "'<|im_start|>' + m.role + '<|im_' + {} + '|>' + '<|im_end|>'",
    "blanks": "'<\uff5cUser\uff5c>' + {} + '<end of turn>' + '<\uff5cend\u2581of\u2581sentence\uff5c>'",
}
_WORDS = {
    "as it is": "m.content",
    "trimmed": "(m.content | trim)",
    "its end": "(m.content.split('</think>') | last).lstrip('\\n')",
    "lowered": "(m.content | lower)",
    "without": "(m.content | replace('<x>', ''))",
    "cut": "m.content[:40]",
    "escaped": "(m.content | e | string)",
    "json": "(m.content | tojson)",
    "twice": "(m.content + m.content)",
    "looked at": "(('tool: ' if '<tool>' in m.content else '') + m.content)",
}
_TOOLS = (
    "{% if tools %}<|system|>{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|end|>{% endif %}",
    "{% for t in tools or [] %}{{ t.function.name + ': ' + t.function.description }}<|end|>{% endfor %}",
)
_CALLS = (
    "{% for c in m.tool_calls or [] %}{{ c.function.name + '(' + (c.function.arguments | tojson) + ')' }}{% endfor %}"
)


def templates() -> dict[str, str]:
    """60 of them."""
    found = {}
    for at, ((frame, said), (how, words)) in enumerate(itertools.product(_FRAMES.items(), _WORDS.items())):
        loop = f"{{% for m in messages %}}{{{{ {said.format(words)} }}}}{_CALLS}{{% endfor %}}"
        found[f"{frame}, {how}"] = f"{_TOOLS[at % 2]}{loop}{{% if add_generation_prompt %}}<|assistant|>{{% endif %}}"
    return found


TEMPLATES = templates()


def tokenizer_of(name: str, template: str) -> Tokenizer:
    return Tokenizer(raw_of(name), special=NAMED, chat_template=TEMPLATES[template])


def reference_of(name: str, template: str) -> Any:
    """The same in transformers."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=raw_of(name), chat_template=TEMPLATES[template], **NAMED)


# ---- conversations ---------------------------------------------------------------------------------------------------

Say = Callable[[random.Random], str]


def plain(dice: random.Random) -> str:
    """Words and what code has, but nothing of a special token: no template makes one of them."""
    some = [
        "cache",
        " page",
        "\n",
        "\n\n",
        " ",
        "a < b",
        "x|y",
        "[1]",
        "</think>",
        "<think>",
        "\u4f60\u597d",
        "\U0001f642",
        '"',
        "\\",
    ]
    return "".join(dice.choices([*some, "<tool>", "e\u0301", "42", "\t"], k=dice.randrange(0, 9)))


def forged(dice: random.Random) -> str:
    """Words with special tokens, whole, cut, in capitals, and with something in them."""
    pieces = []
    for _ in range(dice.randrange(1, 6)):
        mark = dice.choice(MARKS)
        cut = dice.randrange(1, len(mark))
        forms = [
            mark,
            mark,
            mark[:cut],
            mark[cut:],
            mark.upper(),
            f"{mark[:cut]}<x>{mark[cut:]}",
            f" {mark}\n",
            plain(dice),
        ]
        forms += ["im_end", "start", "\ue000", "\\ue000", "\U000f0000", "\U000f0001", "</think>"]
        pieces.append(dice.choice(forms))
    return "".join(pieces)


def conversation(dice: random.Random, say: Say) -> dict[str, Any]:
    """Messages, and sometimes tools, as arguments of ``apply_chat_template``."""
    roles = ["system"][: dice.randrange(2)] + ["user", "assistant"] * dice.randrange(1, 3) + ["user"]
    messages: list[dict[str, Any]] = [{"role": role, "content": say(dice)} for role in roles]
    given: dict[str, Any] = {"messages": messages, "add_generation_prompt": dice.random() < 0.5}
    if dice.random() < 0.4:
        call = {"type": "function", "function": {"name": say(dice), "arguments": {say(dice): say(dice)}}}
        messages += [
            {"role": "assistant", "content": say(dice), "tool_calls": [call]},
            {"role": "tool", "content": say(dice)},
        ]
    if dice.random() < 0.4:
        schema = {"type": "object", "properties": {say(dice): {"description": say(dice)}}}
        function = {"name": say(dice), "description": say(dice), "parameters": schema}
        given["tools"] = [{"type": "function", "function": function}]
    return given


def harmless(given: Any) -> Any:
    """The same conversation with one letter in place of each thing that was said."""
    if isinstance(given, list):
        return [harmless(each) for each in given]
    if isinstance(given, dict):
        kept = ("role", "type", "add_generation_prompt")
        return {
            (key if key.isidentifier() else "x"): each if key in kept else harmless(each) for key, each in given.items()
        }
    return "x" if isinstance(given, str) else given


def sample(seed: int, count: int) -> Iterator[tuple[random.Random, str, str]]:
    """Dice, a tokenizer and a template, in turn."""
    pairs = list(itertools.product(TEMPLATES, TOKENIZERS))
    random.Random(seed).shuffle(pairs)
    for at in range(count):
        template, name = pairs[at % len(pairs)]
        yield random.Random(f"{seed} {at}"), name, template
