"""Talk with a model; branch, edit and retry without computing anything twice.

``conversation`` is what was said, ``answers`` what the model says to it, in ``parts``, ``commands`` what a line does;
``reader`` and ``screen`` are the terminal. docs/chat.md is for people who use it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TextIO

import kvtrie as kv

from ...draft import DraftSource
from ..formats import MODEL, add_context, add_device, add_draft, add_formats, draft_names
from .answers import Answers
from .commands import Chat
from .reader import Reader, history_path, open_reader
from .screen import Screen, stderr_shows
from .settings import Settings
from .thinking import WORDS, thinking_by

CONTEXT = 8192  # tokens, where the model takes more and nobody asks for more


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL)
    parser.add_argument("--model", dest="named", metavar="MODEL", help="the same")
    parser.add_argument("--raw", action="store_true", help="no chat template: every line continues one plain text")
    parser.add_argument("--system", default="", help="a system message")
    add_device(parser)
    add_formats(parser)
    longest = f"longest conversation; behind it the oldest half goes (default: the model's, at most {CONTEXT})"
    add_context(parser, longest)
    parser.add_argument("--capacity", type=int, metavar="TOKENS", help="room on the device (default: the context)")
    parser.add_argument("--host-bytes", default="auto", help="host memory for idle state: bytes, '512MiB', or 'auto'")
    parser.add_argument("--disk", metavar="FOLDER", help="keep what was computed there, for the next time, too")
    add_draft(parser)
    drafts = "a small model with the same tokens, which drafts where those know nothing (docs/drafts.md)"
    parser.add_argument("--draft-model", metavar="MODEL", help=drafts)
    parser.add_argument("--max-tokens", type=int, default=512, help="longest answer (default 512)")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 takes the likeliest token (default 0.7)")
    parser.add_argument("--top-k", type=int, default=0, help="0: all tokens")
    parser.add_argument("--top-p", type=float, default=0.95)
    thinking = "whether, or how hard, a model thinks first (default auto: as its chat template has it)"
    parser.add_argument("--thinking", choices=WORDS, default="auto", help=thinking)
    hidden = "what a model thinks is not shown, only that it does"
    parser.add_argument("--hide-reasoning", action="store_true", help=hidden)
    parser.add_argument("--seed", type=int, default=1, help="another one gives other answers (default 1)")
    parser.add_argument(
        "--no-history", action="store_true", help="neither read nor write the history of what was typed"
    )


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    reasoning = "hidden" if arguments.hide_reasoning else "shown"
    settings = Settings(_sampling(arguments), arguments.max_tokens, arguments.thinking, reasoning)
    screen = Screen(out)
    chosen = kv.models.default.choose(arguments.named or arguments.model)
    if chosen.note:
        screen.note(chosen.note)
    names = draft_names(arguments.draft, "chat")
    model = kv.models.load(
        chosen.path,
        arguments.device,
        arguments.dtype,
        precision=arguments.precision,
        mtp="mtp" in names,
        progress=stderr_shows(),
    )
    problem = _unusable(model, arguments.raw)
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    thinking_by(settings.thinking, model.tokenizer, arguments.raw)  # refuses now, not in the first answer
    context = _context(model, arguments)
    model.warm_up(arguments.kv_dtype, progress=stderr_shows(), wait=False)
    with _cache(model, arguments, context) as cache, _drafts(model, names, arguments, context) as draft:
        chat = Chat(Answers(model, cache, context, arguments.raw, draft), settings, screen, arguments.system)
        reader = open_reader(sys.stdin, screen, None if arguments.no_history else history_path(), chat.complete)
        chat.reader = reader
        _greet(screen, model, cache, chosen.name, context)
        try:
            _converse(chat, reader, screen)
        finally:
            chat.close()
    return 0


def _sampling(arguments: argparse.Namespace) -> kv.Sampling:
    return kv.Sampling(
        temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p, seed=arguments.seed
    )


def _unusable(model: kv.models.Model, raw: bool) -> str:
    if not model.has_tokenizer:
        return "there is no tokenizer (a folder has it in tokenizer.json), so there is no text to talk with"
    if model.tokenizer.chat_template is None and not raw:
        named = ", ".join(model.tokenizer.chat_templates)
        other = f" but {named}" if named else ""
        return f"this checkpoint has no chat template{other}; --raw continues plain text instead"
    return ""


def _context(model: kv.models.Model, arguments: argparse.Namespace) -> int:
    """Tokens that a conversation may have: what is asked for, and what model and device have room for."""
    limits = [model.config.max_position_embeddings, model.config.position_limit(), arguments.capacity]
    most = min(limit for limit in limits if limit is not None)
    context: int | None = arguments.context
    if context is not None and not 16 <= context <= most:
        raise kv.errors.ArgumentError(f"[chat] --context: got {context}, allowed 16 to {most}")
    return min(most, CONTEXT if arguments.capacity is None else most) if context is None else context


def _cache(model: kv.models.Model, arguments: argparse.Namespace, context: int) -> kv.PrefixCache:
    text = arguments.host_bytes
    return kv.PrefixCache(
        model.caches(capacity=arguments.capacity or context, dtype=arguments.kv_dtype),
        fingerprint=model.fingerprint,
        host_bytes=int(text) if text.isdigit() else text,
        disk=arguments.disk,
    )


@contextmanager
def _drafts(
    model: kv.models.Model, names: Sequence[str], arguments: argparse.Namespace, context: int
) -> Iterator[list[DraftSource]]:
    """What drafts, in the order in which it is asked; a head and a model with caches of their own, for conversations as
    long."""
    capacity, dtype = arguments.capacity or context, arguments.kv_dtype
    found: list[DraftSource] = list(names)
    with ExitStack() as open_caches:
        if model.mtp is not None:
            caches = model.mtp.caches(capacity=capacity, dtype=dtype)
            own = open_caches.enter_context(kv.PrefixCache(caches, fingerprint=model.mtp.fingerprint))
            head = kv.PredictionHead(model, own)
            found = [head if name == "mtp" else name for name in names]
        if arguments.draft_model is not None:
            path, precision = kv.models.default.choose(arguments.draft_model).path, arguments.precision
            small = kv.models.load(
                path, arguments.device, arguments.dtype, precision=precision, progress=stderr_shows()
            )
            of_small = kv.PrefixCache(small.caches(capacity=capacity, dtype=dtype), fingerprint=small.fingerprint)
            open_caches.enter_context(of_small)
            draft = kv.DraftModel(small, of_small, context=context - 1)  # one token more comes with them
            draft.drafter(model)  # refuses other tokens now, not in the first answer
            found.append(draft)
        yield found


def _greet(screen: Screen, model: kv.models.Model, cache: kv.PrefixCache, name: str, context: int) -> None:
    size = f"{model.nbytes / 2**20:.0f} MiB of {model.dtype} weights"
    screen.note(f"{name}: {size}, a context of {context:,} tokens, on {model.device.name}")
    known = cache.stats()["tokens"]
    if known:
        screen.note(f"{known:,} tokens are known from before")
    screen.note("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves")


def _converse(chat: Chat, reader: Reader, screen: Screen) -> None:
    """Until the end of the lines. Ctrl-C between two of them ends nothing, not even twice."""
    while True:
        try:
            while True:
                try:
                    if not _line(chat, reader, screen):
                        return
                except KeyboardInterrupt:
                    screen.note("stopped")
        except KeyboardInterrupt:
            pass


def _line(chat: Chat, reader: Reader, screen: Screen) -> bool:
    """Reads one and does what it says; False where it was the last."""
    chat.settle()
    try:
        line = reader.read(chat.prompt)
    except KeyboardInterrupt:
        if not reader.edits and not sys.stdin.isatty():
            return False
        screen.note("Ctrl-D or /quit leaves")
        return True
    return line is not None and (not line.strip() or chat.handle(line))
