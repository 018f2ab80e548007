"""Chats that several clients go on with, against a server at some address: the load of bench_scale.py, in a process of
its own.

    python scale_load.py URL [--chats N] [--turns N] [--clients N] [--seed N]

``--chats`` conversations begin with one of four system prompts of about 600 tokens. Each client takes the next turn of
any conversation that nobody else is in; a turn says a few dozen words, and the answer, 16 tokens chosen greedily,
stays in the conversation. Prints one JSON object: for each turn seconds to the first token, tokens of the prompt, and
those of it that were known; and how many turns were refused or failed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

WORDS = ("the", "of", "and", "a", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are", "with", "as", "his")
ANSWER = 16  # tokens
WAIT = 600.0  # seconds for an answer


def text_of(dice: random.Random, count: int) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(count))


class Chats:
    """All conversations; a turn of each at a time."""

    def __init__(self, url: str, chats: int, turns: int, seed: int) -> None:
        dice = random.Random(seed)
        systems = [text_of(dice, 500) for _ in range(4)]
        self._chats = [[{"role": "system", "content": dice.choice(systems)}] for _ in range(chats)]
        self._left = [(chat, dice.randrange(1 << 30)) for chat in range(chats) for _ in range(turns)]
        dice.shuffle(self._left)
        self._busy: set[int] = set()
        self._changed = threading.Condition()
        self._client = httpx.Client(base_url=url, timeout=WAIT, limits=httpx.Limits(max_connections=None))
        self.turns: list[dict[str, Any]] = []
        self.failed = 0

    def run(self) -> None:
        """Turns until there is none left."""
        while (taken := self._take()) is not None:
            chat, seed = taken
            messages = self._chats[chat]
            messages.append({"role": "user", "content": text_of(random.Random(seed), 30)})
            try:
                self._turn(messages)
            finally:
                self._give_back(chat)

    def _take(self) -> tuple[int, int] | None:
        with self._changed:
            while self._left:
                for at, (chat, seed) in enumerate(self._left):
                    if chat not in self._busy:
                        del self._left[at]
                        self._busy.add(chat)
                        return chat, seed
                self._changed.wait()
            return None

    def _give_back(self, chat: int) -> None:
        with self._changed:
            self._busy.discard(chat)
            self._changed.notify_all()

    def _turn(self, messages: list[dict[str, str]]) -> None:
        body = {"messages": messages, "max_tokens": ANSWER, "temperature": 0, "stream": True, "ignore_eos": True}
        began, first, text, usage = time.perf_counter(), None, "", None
        options = {"stream_options": {"include_usage": True}}
        with self._client.stream("POST", "/v1/chat/completions", json={**body, **options}) as answer:
            if answer.status_code != 200:
                self.failed += 1
                return
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                said = event["choices"][0]["delta"].get("content") if event.get("choices") else None
                if said and first is None:
                    first = time.perf_counter() - began
                text += said or ""
                usage = event.get("usage") or usage
        if usage is None or first is None:
            self.failed += 1
            return
        messages.append({"role": "assistant", "content": text})
        known = usage["prompt_tokens_details"]["cached_tokens"]
        self.turns.append({"first": first, "prompt": usage["prompt_tokens"], "known": known})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--chats", type=int, default=24)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chats = Chats(given.url, given.chats, given.turns, given.seed)
    with ThreadPoolExecutor(given.clients) as pool:
        list(pool.map(lambda _: chats.run(), range(given.clients)))
    json.dump({"turns": chats.turns, "failed": chats.failed}, sys.stdout)


if __name__ == "__main__":
    main()
