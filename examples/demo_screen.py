"""What the demo shows: colours and progress bars on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

try:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
    from rich.text import Text
except ImportError:  # pragma: no cover
    sys.exit("the demo draws with rich: pip install 'kvtrie[demo]'")

from kvtrie import viz
from kvtrie.viz.words import clip, format_bytes, text_columns

_INDENT = "      "
_COLOURS = {"Anna": "cyan", "Ben": "green", "Chloe": "magenta", "Dora": "yellow"}


@dataclass
class TurnReport:
    """One row of the table. Tokens, bytes, and milliseconds to the first token."""

    number: int
    who: str
    what: str
    prompt: int
    matched: int
    reused: int
    tier: str
    bytes_moved: int
    warm_ms: float
    cold_ms: float = 0.0
    difference: float = 0.0

    @property
    def computed(self) -> int:
        return self.prompt - self.reused


class Speaker:
    """Writes an answer as it is made, word by word, wrapped and indented."""

    def __init__(self, console: Console, tokenizer: Any) -> None:
        self._console = console
        self._stream = tokenizer.stream()
        self._word = ""
        self._column = 0

    def feed(self, token: int) -> None:
        for character in self._stream.feed(token):
            if character.isspace():
                self._flush()
            elif character.isprintable():
                self._word += character

    def finish(self) -> None:
        self._word += "".join(character for character in self._stream.finish() if character.isprintable())
        self._flush()
        self._console.print()

    def _flush(self) -> None:
        width = text_columns(self._word)
        if not width:
            return
        if not self._column or self._column + 1 + width > self._console.width - 2:
            lead = "\n" + _INDENT if self._column else _INDENT
            self._column = len(_INDENT)
        else:
            lead = " "
            self._column += 1
        self._console.print(Text(lead + self._word), end="", soft_wrap=True)
        self._column += width
        self._word = ""


class Screen:
    """The demo's output. `plain`: no colour and no bars, whatever stdout is."""

    def __init__(self, plain: bool) -> None:
        fancy = sys.stdout.isatty() and not plain
        self._console = Console(no_color=not fancy, force_terminal=fancy, highlight=False, width=None if fancy else 100)
        self._fancy = fancy
        self._ascii = not (sys.stdout.encoding or "").lower().startswith("utf")

    def opening(self, model: Any, cache: Any, dtype: str, capacity: int, total: int) -> None:
        config = model.config
        shape = f"{config.num_hidden_layers} layers of {config.hidden_size}, vocabulary {config.vocab_size}"
        stats = cache.stats()
        device_bytes = sum(part["bytes"] for part in [*stats["caches"], *stats["recurrent"]])
        self._console.print()
        for name, value in (
            ("model", f"{config.model_type}, {shape}, {format_bytes(model.nbytes)}"),
            ("device", f"{model.device.name}"),
            (
                "K/V",
                f"{capacity} cells of {dtype}, {format_bytes(device_bytes)}; the plot is about {total} tokens long",
            ),
        ):
            self._console.print(f"[bold]{name:<8}[/bold]{escape(value)}")
        self._console.print()

    def note(self, words: str) -> None:
        self._console.print(Text(words, style="dim"))

    def turn(self, number: int, who: str, what: str, says: str) -> None:
        head = f"{number:>3}  [bold {_COLOURS.get(who, 'white')}]{who}[/] [dim]{what}[/]"
        self._console.print(head)
        self._console.print(Text(_INDENT + clip(says, self._console.width - len(_INDENT) - 1), style="italic"))

    def facts(self, report: TurnReport) -> None:
        moved = f" ({format_bytes(report.bytes_moved)} from the {report.tier})" if report.bytes_moved else ""
        apart = f"{report.difference:.0e} apart" if report.difference else "identical"
        line = (
            f"reused {report.reused} of {report.prompt}{moved}, first token {report.warm_ms:.0f} ms, "
            f"cold {report.cold_ms:.0f} ms, logits {apart}"
        )
        wrapped = textwrap.fill(line, self._console.width - 1, initial_indent=_INDENT, subsequent_indent=_INDENT)
        self._console.print(Text(wrapped, style="dim"))
        self._console.print()

    def speaker(self, tokenizer: Any) -> Speaker:
        return Speaker(self._console, tokenizer)

    @contextmanager
    def progress(self, words: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar over `total` tokens that goes away when it is done; yields what to call with each step's rows."""
        bar = Progress(
            TextColumn(_INDENT + "{task.description:<9}"), BarColumn(bar_width=40), MofNCompleteColumn(),
            TextColumn("tokens"), TimeElapsedColumn(), console=self._console, transient=True, disable=not self._fancy,
        )  # fmt: skip
        with bar:
            task = bar.add_task(words, total=max(total, 1))
            yield lambda rows: bar.advance(task, rows)

    @contextmanager
    def loading(self, path: str) -> Iterator[Callable[[int, int], None]]:
        """A bar over the bytes of a checkpoint; yields what to call with (bytes done, bytes in all)."""
        if not self._fancy:
            self._console.print(f"loading {path}")
            yield lambda *_: None
            return
        bar = Progress(TextColumn("loading"), BarColumn(bar_width=40), DownloadColumn(binary_units=True),
                       console=self._console, transient=True)  # fmt: skip
        with bar:
            task = bar.add_task("loading", total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    @contextmanager
    def waiting(self, words: str) -> Iterator[None]:
        if self._fancy:
            with self._console.status(words):
                yield
        else:
            self._console.print(words)
            yield

    def table(self, reports: list[TurnReport]) -> None:
        """A row a turn; milliseconds are to the first token of the answer."""
        padding = (0, 1) if self._console.width >= 98 else (0, 0)
        table = Table(box=box.SIMPLE_HEAD, padding=padding, pad_edge=False)
        table.add_column("", justify="right", style="dim")
        table.add_column("who")
        table.add_column("turn", no_wrap=True, max_width=17)
        for name in ("prompt", "matched", "reused", "computed"):
            table.add_column(name, justify="right")
        table.add_column("tier")
        table.add_column("ms", justify="right")
        table.add_column("ms cold", justify="right")
        for report in reports:
            figures = [report.prompt, report.matched, report.reused, report.computed]
            table.add_row(
                str(report.number), f"[{_COLOURS.get(report.who, 'white')}]{report.who}[/]", report.what,
                *map(str, figures), report.tier if report.reused else "-", f"{report.warm_ms:.0f}",
                f"{report.cold_ms:.0f}",
            )  # fmt: skip
        table.add_section()
        sums = [
            sum(getattr(report, name) for report in reports) for name in ("prompt", "matched", "reused", "computed")
        ]
        times = [sum(getattr(report, name) for report in reports) for name in ("warm_ms", "cold_ms")]
        table.add_row("", "all", "", *map(str, sums), "", *(f"{value:.0f}" for value in times), style="bold")
        self._console.print(table)

    def tree(self, cache: Any, decode: Callable[[list[int]], str]) -> None:
        text = viz.tree_text(cache, decode, ascii_only=self._ascii, width=self._console.width)
        self._console.print(Text(text), soft_wrap=True)
        self._console.print()

    def failure(self, words: str) -> None:
        self._console.print(Text(words, style="red"))

    def verdict(self, good: bool, words: str) -> None:
        text = Text(("same: " if good else "DIFFERENT: ") + words, style="bold green" if good else "bold red")
        self._console.print(text, soft_wrap=True)
