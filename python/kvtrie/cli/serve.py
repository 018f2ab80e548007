"""Serve a model over HTTP: the APIs of OpenAI and Anthropic; what was computed is kept across restarts."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import kvtrie as kv
from kvtrie._paths import path_text
from kvtrie.serve.settings import CONTEXT, CONVERSATIONS

from .chat.screen import stderr_shows
from .formats import MODEL, add_context, add_device, add_draft, add_formats, draft_names

if TYPE_CHECKING:
    from kvtrie.serve.opening import Opened, ServeOptions

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL)
    parser.add_argument("--name", help="what clients call it (default: the file's or folder's name)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (others than loopback need keys)")
    parser.add_argument("--port", type=int, default=8080, help="0: any that is free (default 8080)")
    add_device(parser)
    add_formats(parser)
    _add_sizes(parser)
    _add_access(parser)


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    add_context(parser, f"longest conversation with its answer (default: the model's, at most {CONTEXT})")
    parser.add_argument(
        "--capacity", type=int, metavar="TOKENS", help=f"room on the device (default: {CONVERSATIONS} contexts)"
    )
    parser.add_argument("--host-bytes", default="auto", help="host memory for idle state: bytes, '512MiB', or 'auto'")
    parser.add_argument("--disk", metavar="FOLDER", help="where state is kept (default: below ~/.cache; none: nowhere)")
    parser.add_argument("--disk-bytes", metavar="BYTES", help="its cap (default: a tenth of the free space)")
    parser.add_argument(
        "--disk-after", type=int, default=2, metavar="REQUESTS",
        help="that have to ask for a prompt's tokens before they are written behind; 1: all is (default 2)",
    )  # fmt: skip
    parser.add_argument("--store", metavar="URL", help="Redis or Valkey that several servers share (docs/store.md)")
    parser.add_argument(
        "--store-deadline", type=float, default=2.0, metavar="SECONDS",
        help="that one request may spend on asking it; then it goes on with what came (default 2)",
    )  # fmt: skip
    parser.add_argument("--max-tokens", type=int, default=4096, help="longest answer, where a request does not say")
    parser.add_argument("--max-sessions", type=int, default=8, help="answers that share a step (default 8)")
    parser.add_argument("--max-waiting", type=int, default=64, help="that wait for it; more get 429 (default 64)")
    add_draft(parser)
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="where a request does not say (default 1, as in the APIs)"
    )


def _add_access(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keys", metavar="FILE",
        help="JSON: API keys, and the namespace of each; who has one finds nothing of the others",
    )  # fmt: skip
    parser.add_argument(
        "--admin-key", metavar="KEY", default=os.environ.get("KVTRIE_ADMIN_KEY"),
        help="for the live page and /metrics, where there are keys (default: KVTRIE_ADMIN_KEY)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-host", metavar="NAME", action="append", default=[],
        help="answer to this name, too, where there are no keys: host.docker.internal, *.lan, * (may be repeated)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-origin", metavar="ORIGIN", action="append", default=[],
        help="let scripts of these pages ask: http://localhost:3000, * (may be repeated)",
    )  # fmt: skip
    parser.add_argument(
        "--drop-lines", metavar="PATTERN", action="append", default=[],
        help="take lines that match out of system messages: a date, a counter (may be repeated)",
    )  # fmt: skip
    parser.add_argument("--chat-template", metavar="FILE", help="a chat template (Jinja) in place of the model's own")
    parser.add_argument(
        "--freeze-clock", metavar="WHEN",
        help="hold the time in the chat template still, which ends reuse when it changes: conversation (that of its "
        "first request), start (the server's), or a day such as 2026-11-27",
    )  # fmt: skip
    parser.add_argument(
        "--ignore-fields", metavar="NAME", action="append", default=[],
        help="ignore a field of requests that would be refused, since it is not known here (may be repeated)",
    )  # fmt: skip


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        how = "pip install 'kvtrie[serve]', or ./dev serve in a clone"
        raise kv.errors.NotSupportedError(f"[serve] needs {error.name}: {how}") from error
    from kvtrie.serve.app import create_app
    from kvtrie.serve.clocks import writes_time
    from kvtrie.serve.generic_tools import needs_generic
    from kvtrie.serve.opening import open_server
    from kvtrie.serve.server import Server

    keys = _keys(arguments.keys)
    if not keys and arguments.host not in LOOPBACK:
        raise kv.errors.ArgumentError(
            f"[serve] --host: got {arguments.host} without --keys, allowed {', '.join(LOOPBACK)}"
        )
    try:
        opened = open_server(_options(arguments, keys), stderr_shows())
    except kv.errors.BusyError as error:
        raise kv.errors.BusyError(f"{error}; another server has it? --disk FOLDER or --disk none") from error
    if opened.note:
        print(opened.note, file=out)
    if needs_generic(opened.model.tokenizer):
        print("its chat template knows no tools: a system message describes them", file=out)
    if opened.settings.freeze_clock is None and writes_time(opened.model.tokenizer):
        print("its chat template writes the time; --freeze-clock conversation holds it still", file=out)
    app = create_app(opened.model, opened.cache, opened.name, opened.settings)
    context = opened.settings.context
    print(f"{opened.name} on {opened.model.device.name}, a context of {context:,} tokens", file=out)
    print(_where(opened), file=out, flush=True)
    Server(app, host=arguments.host, port=arguments.port).run()
    return 0


def _where(opened: Opened) -> str:
    if opened.folder is None:
        why = f": {opened.unkept}; --disk FOLDER names a place" if opened.unkept else ""
        return f"nothing is kept after the end{why}"
    return f"{opened.cache.stats()['tokens']:,} tokens are known from before, state is kept in {opened.folder}"


def _keys(file: str | None) -> Mapping[str, str]:
    if file is None:
        return {}
    try:
        keys = json.loads(Path(path_text(file, "serve", "--keys")).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise kv.errors.ArgumentError(f"[serve] --keys: cannot be read: {error}") from error
    texts = isinstance(keys, dict) and all(isinstance(text, str) and text for text in (*keys, *keys.values()))
    if not keys or not texts:
        raise kv.errors.ArgumentError('[serve] --keys: allowed a JSON object of texts, {"KEY": "NAMESPACE"}')
    return dict(keys)


def _options(arguments: argparse.Namespace, keys: Mapping[str, str]) -> ServeOptions:
    from kvtrie.serve.opening import ServeOptions

    same = {field.name for field in dataclasses.fields(ServeOptions)} & set(vars(arguments))
    values = {name: getattr(arguments, name) for name in same}
    lists = {name: tuple(getattr(arguments, name)) for name in ("drop_lines", "ignore_fields")}
    lists["draft"] = draft_names(arguments.draft, "serve")
    hosts = (*ServeOptions.hosts, *arguments.allow_host)
    reached = {"hosts": hosts, "origins": tuple(arguments.allow_origin)}
    return ServeOptions(**{**values, **lists, **reached, "keys": keys})
