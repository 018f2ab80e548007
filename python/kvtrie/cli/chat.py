"""Talk with a checkpoint; branch, undo and retry without computing anything twice."""

from __future__ import annotations

import argparse
import sys
from typing import Any, TextIO

import kvtrie as kv

from .conversation import HELP, Chat, Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="model", help="a Hugging Face folder, a GGUF file, or organisation/model")
    parser.add_argument("--raw", action="store_true", help="no chat template: every line continues one plain text")
    parser.add_argument("--system", default="", help="a system message")
    parser.add_argument("--device", help="part of a platform's or device's name")
    parser.add_argument(
        "--dtype", choices=["float32", "float16", "q8_0", "stored"], help="weights on the device (default: as stored)"
    )
    parser.add_argument("--kv-dtype", choices=["float32", "float16"], default="float16", help="keys and values")
    parser.add_argument("--capacity", type=int, default=8192, help="tokens that fit on the device (default 8192)")
    parser.add_argument("--host-bytes", default="auto", help="host memory for idle state: bytes, '512MiB', or 'auto'")
    parser.add_argument("--max-tokens", type=int, default=256, help="longest answer (default 256)")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 takes the likeliest token (default 0.7)")
    parser.add_argument("--top-k", type=int, default=0, help="0: all tokens")
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    bars = True if sys.stderr.isatty() else None
    model = kv.models.load(arguments.folder, arguments.device, arguments.dtype, progress=bars)
    problem = _unusable(model, arguments.raw)
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    host_bytes = int(arguments.host_bytes) if arguments.host_bytes.isdigit() else arguments.host_bytes
    model.warm_up(arguments.kv_dtype, progress=bars, wait=False)
    caches = model.caches(capacity=arguments.capacity, dtype=arguments.kv_dtype)
    cache = kv.PrefixCache(caches, fingerprint=model.fingerprint, host_bytes=host_bytes)
    settings = Settings(
        raw=arguments.raw,
        system=arguments.system,
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
        show_progress=bool(bars),
    )
    print(f"{model!r}\n{HELP}", file=out)
    chat = Chat(model, cache, settings, out)
    try:
        _converse(chat, out)
    finally:
        chat.close()
        cache.close()
    return 0


def _unusable(model: Any, raw: bool) -> str:
    if not model.has_tokenizer:
        return "there is no tokenizer (a folder has it in tokenizer.json), so there is no text to talk with"
    if model.tokenizer.chat_template is None and not raw:
        return "this checkpoint has no chat template; --raw continues plain text instead"
    return ""


def _converse(chat: Chat, out: TextIO) -> None:
    while True:
        line = _read_line(chat.prompt)
        if line is None:
            print(file=out)
            return
        if line.strip() and not chat.handle(line):
            return


def _read_line(prompt: str) -> str | None:
    """One line without its end, None at the end of the input; the prompt shows on terminals only."""
    try:
        if sys.stdin.isatty():
            return input(prompt)
        line = sys.stdin.readline()
    except (EOFError, KeyboardInterrupt):
        return None
    return line.rstrip("\n") if line else None
