"""Log-probabilities of an answer's tokens, in the two forms that the OpenAI API has.

    chats    {"token", "logprob", "bytes", "top_logprobs": [...]} for each: the bytes of all, joined, are the answer's
    texts    lists beside each other, and for each token an object of the likeliest, by their names

A token may end within a character. Then its ``token`` in a chat has U+FFFD, and its name is ``bytes:\\xe6\\x97``, as
OpenAI writes it. An object cannot have two tokens of one name: the less likely one is ``token_id:NUMBER``, as in vLLM.

Units: natural logarithms; ``text_offset`` in characters from the answer's beginning.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..models.token_bytes import TokenBytes
from ..sampling import TokenLogprob
from .json_values import JsonObject

LEAST = -9999.0  # JSON has no infinity


def of_chat(table: TokenBytes, logprobs: Sequence[TokenLogprob], first: bool) -> list[JsonObject]:
    """Entries of ``content``. ``first``: they begin a text, which may take a space off the first of them."""

    def entry(at: int, token: int, logprob: float) -> JsonObject:
        spelled = table.of(token, first and at == 0)
        text = spelled.decode("utf-8", "replace")
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(spelled)}

    return [
        {**entry(at, each.token, each.logprob), "top_logprobs": [entry(at, *likely) for likely in each.top]}
        for at, each in enumerate(logprobs)
    ]


def of_text(table: TokenBytes, logprobs: Sequence[TokenLogprob], offsets: Sequence[int]) -> JsonObject:
    """The object of these tokens; ``offsets``: where each begins in the text."""
    return {
        "tokens": [name_of(table, each.token) for each in logprobs],
        "token_logprobs": [max(each.logprob, LEAST) for each in logprobs],
        "top_logprobs": [_by_name(table, each) for each in logprobs],
        "text_offset": list(offsets),
    }


def _by_name(table: TokenBytes, each: TokenLogprob) -> dict[str, float]:
    named: dict[str, float] = {}
    chosen = name_of(table, each.token)
    for token, logprob in each.top:
        name = name_of(table, token)
        taken = name in named or (name == chosen and token != each.token)
        named[f"token_id:{token}" if taken else name] = max(logprob, LEAST)
    return named


def name_of(table: TokenBytes, token: int) -> str:
    """Its text where it is one."""
    spelled = table.of(token)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)
