"""Engines of replicas whose every token names its namespace and the text before it (naming_model.py).

    ScaleOptions(model="tiny", engine="scale_engine:naming")

It needs no OpenCL: its caches are on the host, and its model is arithmetic. ``KVTRIE_STEP_SECONDS`` makes each step
take as long, and ``KVTRIE_TOKEN_SECONDS`` each token that is computed.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import kvtrie as kv
from kvtrie.models.token_texts import token_texts_of
from kvtrie.serve.opening import Opened, ServeOptions
from kvtrie.serve.settings import Settings
from naming_model import NamingModel
from serving import TINY


def plain_model(check: bool = True) -> NamingModel:
    """The naming model on the tokenizer of examples/tiny, whose weights are not loaded."""
    tokenizer = kv.models.load_tokenizer(TINY)
    end = tokenizer.token_id(tokenizer.special["eos_token"])
    real = SimpleNamespace(
        tokenizer=tokenizer,
        token_texts=token_texts_of(tokenizer),
        end_tokens=(end,),
        config=SimpleNamespace(vocab_size=tokenizer.vocab_size),
    )
    return NamingModel(real, check)


class TimedModel(NamingModel):
    """Takes the time that the environment says."""

    step_seconds = float(os.environ.get("KVTRIE_STEP_SECONDS", "0"))
    token_seconds = float(os.environ.get("KVTRIE_TOKEN_SECONDS", "0"))

    def __call__(self, step: Any) -> Any:
        time.sleep(self.step_seconds + self.token_seconds * len(step.tokens))
        return super().__call__(step)


def slow(options: ServeOptions) -> Opened:
    """``naming``, of which a long answer takes minutes."""
    opened = naming(options)
    opened.model.step_seconds = 0.05
    return opened


def naming(options: ServeOptions) -> Opened:
    """What ``open_server`` gives, but for the model."""
    model = plain_model()
    model.__class__ = TimedModel
    settings = Settings(
        options.context or 4096,
        max_sessions=options.max_sessions,
        max_waiting=options.max_waiting,
        keys=options.keys,
        hosts=options.hosts,
    )
    cache = kv.PrefixCache(
        model.caches(options.capacity or 1 << 16),
        fingerprint=model.fingerprint,
        host_bytes=options.host_bytes if options.host_bytes != "auto" else 1 << 26,
        store=options.store,
        store_deadline=options.store_deadline,
    )
    return Opened(model, "tiny", cache, settings, None)
