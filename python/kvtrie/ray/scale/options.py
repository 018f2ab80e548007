"""The options of an application of several replicas: on the command line, in a YAML file, or in Python.

    serve run kvtrie.scale:app model=tiny replicas=2 store=redis://localhost:6379
    args: {model: tiny, replicas: 2}                     under `applications:` in a file for `serve deploy`

All other options are those of one server, ``kvtrie.serve.opening.ServeOptions``, the same for each replica.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, Optional

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ...errors import ArgumentError
from ...serve.opening import ServeOptions

Routing = Literal["affinity", "two_choices", "round_robin", "random", "ray_prefix", "ray"]


class ScaleOptions(BaseModel):
    """``replicas``: how many, or the least where ``max_replicas`` is more: Ray adds and takes away (autoscaling.py)
    so that each has about ``target_requests`` under way and ``target_tokens`` of prompts to compute.

    ``routing``: "affinity" is ours (routing.py); "ray_prefix" Ray's ``PrefixCacheAffinityRouter``, "ray" its usual one.
    ``routers``: processes that read requests and choose; each learns from the replicas, and of its own choices.
    ``summary_seconds``: how often a replica tells routers what it knows, at most. ``shared``: what fetching a token
    from the store takes, as a share of computing it; None: stores are not thought of in choosing.
    ``cpus``, ``gpus``: of Ray's, for each replica; ``threads``: of the processor that it may compute with, None: all.
    ``drain_seconds``: how long a replica that is to go may take for the requests that it has, and for writing.
    ``attempts``: of a request whose replica went before it began to answer. ``max_queued``: requests that may wait for
    a replica at each router; more get 429. ``engine``: "module:function" for models of one's own: it is called with
    the ``ServeOptions`` and returns what ``open_server`` does; ``model`` then names the tokenizer.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    replicas: int = Field(1, ge=1)
    max_replicas: Optional[int] = Field(None, ge=1)
    target_requests: float = Field(4.0, gt=0)
    target_tokens: int = Field(8192, ge=1)
    routing: Routing = "affinity"
    routers: int = Field(1, ge=1)
    summary_seconds: float = Field(1.0, ge=0.1)
    shared: Optional[float] = Field(None, ge=0, le=1)
    seed: Optional[int] = None
    cpus: float = Field(1.0, ge=0)
    gpus: float = Field(0.0, ge=0)
    threads: Optional[int] = Field(None, ge=1)
    drain_seconds: float = Field(30.0, ge=0)
    attempts: int = Field(4, ge=1)
    max_queued: int = Field(256, ge=-1)
    engine: Optional[str] = None

    def server(self) -> ServeOptions:
        """The options of one replica. Raises ``kv.errors.ArgumentError`` for an option that there is not, or a wrong
        value."""
        given: dict[str, object] = {"own_folder": True, **(self.model_extra or {})}
        names = [each.name for each in dataclasses.fields(ServeOptions)]
        for name in given:
            if name not in names:
                allowed = ", ".join(sorted([*type(self).model_fields, *names]))
                raise ArgumentError(f"[scale] {name}: got an option that there is not, allowed {allowed}")
        try:
            return TypeAdapter(ServeOptions).validate_python(given)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(each) for each in first["loc"])
            raise ArgumentError(f"[scale] {where}: got {first['input']!r}, allowed: {first['msg']}") from None
