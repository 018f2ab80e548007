"""The prompt of a plain text, given back with its answer: as text (``echo``), and what the model gives its tokens.

    echo                  the text begins with the prompt's
    echo, logprobs        so do the lists of ``logprobs``; nothing is in front of the first token, so it has null
    prompt_logprobs       a list of its own, as in vLLM: for each token an object of the likeliest and itself, by ids

The text is the one that was sent, or that of the token ids. Tokens that a tokenizer puts in front of a text stand in
the lists, and take no characters.

Units: characters. Threads: any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..models.tokenizer import Tokenizer
from ..sampling import RankedLogprob, TokenLogprob
from .json_values import JsonObject
from .logprobs import LEAST, name_of, of_text
from .prompts import Prompt


@dataclass(frozen=True)
class Echo:
    """``tokens``: of the prompt; ``offsets``: where each begins in ``text``; ``top``: how many of the likeliest are
    told of each, None: nothing."""

    tokenizer: Tokenizer
    text: str
    tokens: Sequence[int]
    offsets: Sequence[int]
    top: int | None

    def logprobs(
        self, prompt: Sequence[RankedLogprob], answer: Sequence[TokenLogprob], at: Sequence[int]
    ) -> JsonObject:
        """Of the prompt and the answer; ``at``: where each token of the answer begins in it."""
        table = self.tokenizer.token_bytes
        whole: JsonObject = {
            "tokens": [name_of(table, self.tokens[0])],
            "token_logprobs": [None],
            "top_logprobs": [None],
            "text_offset": [self.offsets[0]],
        }
        told = of_text(table, [_cut(each.logprob, self.top or 0) for each in prompt], self.offsets[1:])
        for part in (told, of_text(table, answer, [len(self.text) + offset for offset in at])):
            for name, values in part.items():
                whole[name] += values
        return whole


def echo_of(tokenizer: Tokenizer, prompt: Prompt, top: int | None) -> Echo:
    """The part of ``prompt`` that is given back."""
    tokens = prompt.tokens.tolist()
    text = prompt.text or tokenizer.decode(tokens)
    return Echo(tokenizer, text, tokens, _offsets(tokenizer, tokens, prompt.text, len(text)), top)


def _offsets(tokenizer: Tokenizer, tokens: Sequence[int], sent: str, most: int) -> list[int]:
    """``sent``: the text that was tokenized; "" where tokens were sent."""
    added = tokenizer.ends[0] if sent else []
    silent = len(added) if tokens[: len(added)] == added and not sent.startswith(tokenizer.decode(added)) else 0
    stream = tokenizer.stream(skip_special_tokens=False)
    offsets, at = [0] * silent, 0
    for token in tokens[silent:]:
        offsets.append(min(at, most))
        at += len(stream.feed(token))
    return offsets


def _cut(each: TokenLogprob, top: int) -> TokenLogprob:
    return each._replace(top=each.top[:top])


def by_ids(tokenizer: Tokenizer, prompt: Sequence[RankedLogprob], top: int) -> list[JsonObject | None]:
    """``prompt_logprobs``: of all tokens of a prompt."""
    table = tokenizer.token_bytes

    def entry(token: int, logprob: float, rank: int) -> JsonObject:
        text = table.of(token).decode("utf-8", "replace")
        return {"logprob": max(logprob, LEAST), "rank": rank, "decoded_token": text}

    told: list[JsonObject | None] = [None]
    for each, rank in prompt:
        likeliest = {str(token): entry(token, value, at + 1) for at, (token, value) in enumerate(each.top[:top])}
        own = {str(each.token): entry(each.token, each.logprob, rank)}
        told.append({**likeliest, **({} if str(each.token) in likeliest else own)})
    return told
