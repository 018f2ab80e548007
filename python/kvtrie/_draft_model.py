"""A small model that drafts for a large one, with a prefix cache of its own.

The draft model writes on, greedily, behind the tokens of the answer; the model itself checks what it wrote (draft.py).
Each answer has a session of the draft model, in the namespace of its own session, so that the prefix of a draft is
found as any other: of earlier turns, and of other answers of the namespace. Between two drafts that session is brought
in step with the answer:

    answer           a b c d e x           e was drafted, x was chosen in place of f
    draft model      a b c d e f g         f g are rolled back, x is appended and computed

Recurrent layers keep no state at each length that they could go back to, so with them drafts are written by a branch,
which publishes nothing and is closed, and what was right is computed once more, in one step.

Source: speculative decoding (Leviathan et al. 2023, Chen et al. 2023); what is accepted is decided in _decoding.py.

Threads: a :class:`DraftModel` may be shared by any number of answers; a :class:`Companion` belongs to one, and only
``close`` may come from another thread. Lengths are counted in tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from . import _core
from ._arguments import refusal, whole
from ._live import Live
from ._own_session import OwnSession, Tokens, first_apart
from ._prompts import vocab_size_of
from ._protocols import Logits, StepModel, cache_of
from .draws import NONE, Draw, draw
from .errors import ArgumentError

__all__ = ["Companion", "DraftModel"]

_CHUNK = 512  # rows of a prefill step


class DraftModel(Live):
    """A small model as a drafter: ``kv.generate(model, prompt, draft=kv.DraftModel(small))``.

    ``model``: from ``kv.models``, or a callable that computes steps, with the tokens of the model that it drafts for.
    ``cache``: a ``kv.PrefixCache`` of its caches; None: the model's own. What one answer computes there, later turns
    and other answers of the same namespace find; nothing crosses namespaces, and a session that publishes nothing has
    none of its drafts published either. ``context``: tokens of the longest text, drafts included; None: as many as the
    draft model and its cache take.

    It may be shared by any number of answers, also at the same time. It drafts nothing for texts with media, with
    tokens that it does not know, or longer than its context or its cache, and rests where that is full; other errors of
    its model end the read that met them, as those of the model itself do. Raises ``kv.errors.ArgumentTypeError`` for
    what is no model, and for a model without a cache of its own where none is given.
    """

    def __init__(self, model: StepModel, cache: _core.PrefixCache | None = None, *, context: int | None = None) -> None:
        if not callable(model):
            raise refusal(model, "DraftModel", "model", "a callable that computes a step")
        if cache is not None and not isinstance(cache, _core.PrefixCache):
            raise refusal(cache, "DraftModel", "cache", "a PrefixCache, or None")
        if cache is None:
            cache_of(model, "DraftModel")
        self._model = model
        self._cache = cache
        self._context = None if context is None else whole(context, "DraftModel", "context", 1)

    @property
    def model(self) -> StepModel:
        """The model that drafts."""
        return self._model

    @property
    def cache(self) -> _core.PrefixCache:
        """The cache of its sessions: the one that was given, or the model's own."""
        return cache_of(self._model, "DraftModel") if self._cache is None else self._cache

    def drafter(self, model: StepModel) -> Companion:
        """The drafter of one answer of ``model``. ``kv.errors.ArgumentError`` where their tokens are not the same."""
        _check_tokens(model, self._model)
        return Companion(self._model, self.cache, _least(vocab_size_of(model)), self._context)

    def __repr__(self) -> str:
        return f"<kvtrie.DraftModel: {self._model!r}>"


class Companion(OwnSession):
    """The draft model's session of one answer. ``vocab_size``: drafts end before tokens beyond it, which the model that
    they are for does not have. ``context``: tokens of the longest text, drafts included."""

    def __init__(self, model: StepModel, cache: _core.PrefixCache, vocab_size: int, context: int | None = None) -> None:
        super().__init__(cache)
        self._model = model
        self._vocab_size = vocab_size
        self._known = _least(vocab_size_of(model))  # ids below it
        self._most = _least(_context(model), cache.longest, context)
        self._branches = bool(cache.stats()["recurrent"])

    def _drafts(self, session: _core.Session, tokens: Tokens, most: int) -> list[int]:
        """What the draft model would write."""
        most = min(most, self._most - len(tokens))
        if most < 1 or len(tokens) == 0 or tokens.min() < 0 or tokens.max() >= self._known:
            return []
        return self._written(self._in_step(session, tokens), most)

    def _in_step(self, session: _core.Session, tokens: Tokens) -> _core.Session:
        """Its own session with exactly ``tokens``, of which at least one remains to be computed."""
        own, publish = self._own, session.publishes
        if own is not None and own.publishes and not publish:  # what the answer computes is its own by now
            self._give_way()
            own = None
        if own is None:
            own = self._own = self._cache.begin(tokens, session.namespace, publish=publish)
            if self._closed:
                self._give_way()
            return own
        written = own.tokens
        same = first_apart(written, tokens)
        if same < len(written):
            own.rollback(len(written) - same)
        if same < len(tokens):
            own.append(tokens[same:])
        if own.length == own.recorded:
            own.recompute()
        return own

    def _written(self, own: _core.Session, most: int) -> list[int]:
        logits: Logits | None = None
        for step in own.prefill(_CHUNK):
            logits = self._model(step)
        assert logits is not None  # something remained
        if not self._branches or most == 1:
            return self._greedy(own, logits, most)
        with own.branch(publish=False) as branch:
            return self._greedy(branch, logits, most)

    def _greedy(self, session: _core.Session, logits: Logits, most: int) -> list[int]:
        """``logits`` [1, vocab] follow all tokens of ``session``. The last token is neither recorded nor computed."""
        found: list[int] = []
        while True:
            token = draw(logits, [Draw()])[0]
            if token == NONE or token >= self._vocab_size:
                return found
            found.append(token)
            if len(found) == most:
                return found
            session.append(token)
            logits = self._model(session.decode())


# ---- whether a model can draft for another ---------------------------------------------------------------------------


def _least(*sizes: int | None) -> int:
    return min((size for size in sizes if size is not None), default=2**31)


def _context(model: StepModel) -> int:
    """Tokens that a text of ``model`` may have."""
    config = getattr(model, "config", None)
    limit = getattr(config, "position_limit", lambda: None)()
    return _least(getattr(config, "max_position_embeddings", None), limit)


def _vocabulary(model: StepModel) -> Mapping[str, int] | None:
    """The tokens of a model's tokenizer by their ids; None where there is no tokenizer, or one that does not say."""
    if not getattr(model, "has_tokenizer", True):
        return None
    get_vocab = getattr(getattr(getattr(model, "tokenizer", None), "raw", None), "get_vocab", None)
    return None if get_vocab is None else cast("Mapping[str, int]", get_vocab())


def _check_tokens(model: StepModel, small: StepModel) -> None:
    """Where both have a tokenizer, each id that both have must be the same token; one may have further ids, as larger
    models of a series do. Otherwise both must have as many."""
    own, other = _vocabulary(model), _vocabulary(small)
    if own is None or other is None:
        sizes = vocab_size_of(model), vocab_size_of(small)
        if None not in sizes and sizes[0] != sizes[1]:
            raise ArgumentError(f"[generate] draft: got a draft model of {sizes[1]} tokens, allowed {sizes[0]}")
        return
    if own == other:
        return
    texts = {token: text for text, token in own.items()}
    for text, token in sorted(other.items(), key=lambda each: each[1]):
        if texts.get(token, text) != text:
            raise ArgumentError(
                f"[generate] draft: got a draft model whose token {token} is {text!r}, allowed {texts[token]!r}, as in "
                "the model's tokenizer"
            )
