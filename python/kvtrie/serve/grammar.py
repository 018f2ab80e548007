"""Answers that follow a JSON schema, a regular expression or a grammar, by the library llguidance.

Concept. ``Grammars`` belong to a model; each method makes a processor for one request, which forbids every token that
may not come next. Where the text may end, and only there, the model's end tokens are allowed.

    grammars = Grammars(model)
    batcher.submit(prompt, logits_processors=[grammars.json_schema(schema)])

A processor knows how many tokens its prompt has, from its first call, and then looks at the tokens that it is shown:
where they are not those of the call before with more behind them, or that call was interrupted, it goes through all of
them again. So it does not matter whether a token is chosen twice, or a request gave its room back and went on later.

``behind``: a text, such as ``</think>``, that the model says before the grammar begins; until then all is allowed.

Hostile grammars. Some take llguidance minutes and gigabytes (patterns of which all have to match), and what it has
begun cannot be stopped. So each grammar is compiled in a process of its own first, which has seconds and a limit on
memory; those that passed are remembered. Steps have limits of their own: a grammar that needs more fails its request.

Units: seconds, bytes. Threads: ``Grammars`` from any; the vocabulary is made once, at first use. A processor belongs to
one request.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from .. import _child
from .._arguments import refusal, text
from ..errors import ArgumentError, NotSupportedError
from ..sampling import Logits, Tokens
from .wrong_fields import FieldError

if TYPE_CHECKING:
    import llguidance
    from llguidance._lib import JsonCompileOptions

    from ..models.tokenizer import Tokenizer

LONGEST = 1 << 18  # characters of a grammar
DEEPEST = 64  # brackets within brackets of a schema
SECONDS = 3  # of processor time that compiling may take
BYTES = 1 << 30  # of address space while it is compiled
_REMEMBERED = 1024  # grammars
_STATES = 20_000  # of a lexer: some KiB each
_SPELLED = 64  # tokens that spell ``behind``, at most
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]')
_WHERE = "[serve] response_format"

# Compact JSON: else a model may add spaces and line breaks for ever.
_LAYOUT: JsonCompileOptions = {"whitespace_flexible": False}

# The formats of texts that llguidance 1.x knows; a test asks it.
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "unknown")
_LITERAL = ("enum", "const", "default", "examples", "example")  # values, in which nothing is a keyword

_LIMITED = """
import json, resource, sys
sys.path[:] = json.loads(sys.argv[1])
import llguidance
seconds, size = int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_AS, (size, size))
text = sys.stdin.buffer.read().decode()
{}
sys.stdout.buffer.write(said.encode("utf-8", "replace"))
"""
_TRIAL = """
failed, found = llguidance.LLMatcher.validate_grammar_with_warnings(text)
said = "refused " + found[0] if failed else "passed"
"""


class Config(Protocol):
    @property
    def vocab_size(self) -> int: ...


class GrammarModel(Protocol):
    """A ``kv.models.Model``, or one like it."""

    @property
    def config(self) -> Config: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def end_tokens(self) -> Iterable[int]: ...


class Grammars:
    """See above. A schema that llguidance refuses raises ``kv.errors.ArgumentError``; without llguidance everything
    raises ``kv.errors.NotSupportedError``."""

    def __init__(self, model: GrammarModel) -> None:
        self._model = model
        self._vocabulary: llguidance.LLTokenizer | None = None
        self._vocabulary_lock = threading.Lock()
        self._passed: OrderedDict[bytes, None] = OrderedDict()
        self._passed_lock = threading.Lock()

    def json_schema(
        self, schema: Mapping[str, object], behind: str | None = None, field: str = "response_format"
    ) -> Following:
        """JSON without white space that is valid by ``schema``; properties come in its order. A ``format`` that
        llguidance does not know holds nothing back, as the standard has it."""
        require_library()
        from llguidance import LLMatcher

        where = f"[serve] {field}"
        said = _schema_text(schema)
        try:
            made = LLMatcher.grammar_from_json_schema(said, overrides=_LAYOUT)
        except ValueError as error:
            raise _refused(str(error), where) from error
        return self._following(made, behind, where)

    def json_object(self, behind: str | None = None) -> Following:
        """Any JSON object, without white space."""
        return self.json_schema({"type": "object"}, behind)

    def regex(self, pattern: str, behind: str | None = None) -> Following:
        """Text that a regular expression, in Rust's notation, matches as a whole."""
        require_library()
        from llguidance import LLMatcher

        return self._following(LLMatcher.grammar_from_regex(text(pattern, "serve", "regex")), behind)

    def lark(self, grammar: str, behind: str | None = None, field: str = "response_format") -> Following:
        """Text by a grammar in Lark's notation, with what llguidance adds. ``field`` of the request: for errors."""
        require_library()
        from llguidance import LLMatcher

        made = LLMatcher.grammar_from_lark(text(grammar, "serve", "grammar"))
        return self._following(made, behind, f"[serve] {field}")

    def _following(self, grammar: str, behind: str | None, where: str = _WHERE) -> Following:
        from llguidance import LLMatcher, LLParserLimits

        vocabulary = self._known_vocabulary()
        self._try(grammar, where)
        limits = LLParserLimits(max_lexer_states=_STATES, verbose_errors=False)
        matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # an error where no text follows it
        if matcher.is_error():
            raise _refused(matcher.get_error(), where)
        return Following(matcher, vocabulary, behind, self._model.tokenizer, where)

    def _known_vocabulary(self) -> llguidance.LLTokenizer:
        from llguidance import LLTokenizer

        with self._vocabulary_lock:
            if self._vocabulary is None:
                tokenizer, ends = self._model.tokenizer, list(self._model.end_tokens)
                if not ends:
                    raise NotSupportedError(f"{_WHERE}: this model has no end token")
                size = max(self._model.config.vocab_size, tokenizer.vocab_size)
                try:
                    self._vocabulary = LLTokenizer(tokenizer.raw.to_str(), n_vocab=size, eos_token=ends)
                except Exception as error:  # of a kind of its own for each kind of tokenizer
                    raise NotSupportedError(f"{_WHERE}: llguidance cannot use this tokenizer: {error}") from error
            return self._vocabulary

    def _try(self, grammar: str, where: str) -> None:
        """Raises where a grammar is refused, or takes too much to compile."""
        if len(grammar) > LONGEST:
            raise _wrong(where, f"got {len(grammar)} characters, allowed {LONGEST}")
        key = hashlib.sha256(grammar.encode()).digest()
        with self._passed_lock:
            if key in self._passed:
                return self._passed.move_to_end(key)
        if _child.possible():
            _compile_elsewhere(grammar, where)
        with self._passed_lock:
            self._passed[key] = None
            while len(self._passed) > _REMEMBERED:
                self._passed.popitem(last=False)


class Following:
    """A ``kv.LogitsProcessor`` that keeps one text to a grammar.

    Its state is a reading of the tokens behind the prompt, which an exception may leave half done, such as between a
    token that the matcher took and its count. One that was left so is not used again: the next call, which may be for
    the same position, reads all of them anew.
    """

    def __init__(
        self,
        fresh: llguidance.LLMatcher,
        vocabulary: llguidance.LLTokenizer,
        behind: str | None,
        tokenizer: Tokenizer,
        where: str,
    ) -> None:
        self._where = where
        self._fresh = fresh
        self._ends = frozenset(vocabulary.eos_tokens)
        self._behind, self._tokenizer = behind, tokenizer
        self._prompt: int | None = None  # its tokens
        self._at_rest: list[_Reading] = []  # in no call

    def __call__(self, tokens: Tokens, logits: Logits) -> None:
        if self._prompt is None or len(tokens) < self._prompt:
            self._prompt = len(tokens)
        generated: list[int] = tokens[self._prompt :].tolist()
        reading = self._reading_of(generated)
        start = self._begin(reading, generated)
        if start is not None:
            follows = not self._ends.intersection(generated[start:])
            if follows:
                self._consume(reading, generated[max(start, reading.consumed) :])
                reading.consumed = len(generated)
            logits[~self._allowed(reading.matcher, len(logits), follows)] = -np.inf
        reading.shown = generated
        self._at_rest.append(reading)

    def _reading_of(self, generated: list[int]) -> _Reading:
        """The reading of the last call where it is of the beginning of these tokens, or a new one."""
        try:
            reading = self._at_rest.pop()
        except IndexError:
            pass
        else:
            if generated[: len(reading.shown)] == reading.shown:
                return reading
        return _Reading(self._fresh.deep_copy(), 0 if self._behind is None else None)

    def _begin(self, reading: _Reading, generated: list[int]) -> int | None:
        if reading.start is None and self._behind is not None:
            for end in range(len(reading.shown) + 1, len(generated) + 1):
                if self._behind in self._tokenizer.decode(generated[max(0, end - _SPELLED) : end]):
                    reading.start = end
                    break
        return reading.start

    def _consume(self, reading: _Reading, tokens: list[int]) -> None:
        if tokens and not reading.matcher.consume_tokens(tokens):
            raise ArgumentError(
                f"{self._where}: got a token that the grammar does not allow: {_line(reading.matcher.get_error())}"
            )

    def _allowed(self, matcher: llguidance.LLMatcher, size: int, follows: bool) -> npt.NDArray[np.bool_]:
        """[size]; the end tokens exactly where the text may end."""
        allowed = np.zeros(size, bool)
        if follows:
            bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")[:size]
            allowed[: len(bits)] = bits
        if matcher.is_error():
            raise ArgumentError(
                f"{self._where}: got a grammar whose text takes too much work: {_line(matcher.get_error())}"
            )
        may_end = not follows or matcher.is_accepting()
        allowed[[end for end in self._ends if end < size]] = may_end
        return allowed


class _Reading:
    """``start``: of what the grammar is for, in the tokens behind the prompt; None: not there yet."""

    def __init__(self, matcher: llguidance.LLMatcher, start: int | None) -> None:
        self.matcher, self.start = matcher, start
        self.shown: list[int] = []  # at the last call
        self.consumed = 0  # the matcher knows this many of them


def require_library() -> None:
    """Raises ``kv.errors.NotSupportedError`` without llguidance."""
    try:
        import llguidance  # noqa: F401
    except ImportError as error:
        raise NotSupportedError(f"{_WHERE}: needs llguidance: pip install 'kvtrie[serve]'") from error


def elsewhere(program: str, text: str) -> str:
    """The answer of ``program`` about ``text``: these are variables, ``said`` and ``text``. It runs in a process that
    has ``SECONDS`` and ``BYTES``; "": these were not enough. REQUIRES: ``_child.possible``."""
    arguments = [json.dumps(sys.path), str(SECONDS), str(BYTES)]
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-c", _LIMITED.format(program), *arguments],
            input=text.encode("utf-8", "replace"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20 * SECONDS,  # processor time is what counts; others may have the processors for a while
            check=False,
        )
        return ended.stdout.decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        return ""


def _compile_elsewhere(grammar: str, where: str) -> None:
    said = elsewhere(_TRIAL, grammar)
    if said.startswith("refused"):
        raise _refused(said[len("refused ") :], where)
    if said != "passed":
        most = f"{SECONDS} seconds and {BYTES >> 20} MiB"
        raise _wrong(where, f"got a grammar that takes more to compile, allowed {most}")


def _schema_text(schema: Mapping[str, object]) -> str:
    if not isinstance(schema, Mapping):
        raise refusal(schema, "serve", "response_format", "a JSON schema as an object")
    try:
        said = json.dumps(with_known_formats(schema), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _wrong(_WHERE, f"got a schema that is no JSON: {_line(str(error))}") from error
    depth = deepest = 0
    for bracket in _BRACKETS.findall(said):
        depth += (bracket in "[{") - (bracket in "]}")
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        raise _wrong(_WHERE, f"got a schema of depth {deepest}, allowed {DEEPEST}")
    return said


def _refused(error: str, where: str = _WHERE) -> FieldError:
    return _wrong(where, f"got what llguidance refuses: {_line(error)}")


def _wrong(where: str, said: str) -> FieldError:
    """``where``: the layer in brackets, and the field."""
    return FieldError(f"{where}: {said}", param=where.rpartition(" ")[2])


def _line(error: str) -> str:
    return " ".join(error.split())[:300]


# ---- schemas ---------------------------------------------------------------------------------------------------------


def json_expression(schema: Mapping[str, object]) -> str:
    """JSON by ``schema``, as a part of a grammar in Lark's notation."""
    return "%json " + _schema_text({**schema, "x-guidance": _LAYOUT})


def calls_or(calls: str, answer: str) -> str:
    """A grammar in Lark's notation: what ``calls`` begins with, or the expression ``answer``."""
    return f"start: calls | answer\nanswer: {answer}\n" + calls.replace("start:", "calls:", 1)


def with_known_formats(schema: Mapping[str, object]) -> dict[str, object]:
    """A schema, or what has some in it, without each ``format`` of texts that llguidance does not know."""
    kept: dict[str, object] = {}
    for key, value in schema.items():
        if key == "format" and isinstance(value, str) and value not in _FORMATS:
            continue
        kept[key] = value if key in _LITERAL else _known(value)
    return kept


def _known(value: object) -> object:
    if isinstance(value, Mapping):
        return with_known_formats(value)
    return [_known(each) for each in value] if isinstance(value, list) else value
