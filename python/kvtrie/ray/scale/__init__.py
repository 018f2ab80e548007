"""Several replicas of a server as one, on Ray Serve: ``pip install 'kvtrie[ray]'``, then

    serve run kvtrie.scale:app replicas=2                    http://127.0.0.1:8000/v1/chat/completions

    clients --HTTP--> Ray's proxy --> ingress.py    reads the body, who asks (serve/tenants.py), and what for
                                       prompt_keys.py   the request's prompt -> fingerprints
                                       router.py        Ray's request router, by the policies of routing.py, on
                                                        shortlists (shortlist.py) of many replicas
                                      replica.py    the server of kvtrie.serve, whole, in a process of its own
                                       asgi_call.py     one request through it
                                       summaries.py     what its tree knows, pushed by Ray once a second
                      application.py  both as an application, from options.py
                      autoscaling.py  how many replicas there should be

Membership, health, retries of what did not begin, queues and transport are Ray's; state that outlives a replica is in
its disk folder and in the store that all share. ``routing`` needs no Ray; the simulator uses it, too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .application import app as app
    from .options import ScaleOptions as ScaleOptions

__all__ = ["ScaleOptions", "app"]

_HOMES = {"app": "application", "ScaleOptions": "options"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ...errors import NotSupportedError

    try:
        found: object = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        return found
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("ray", "fastapi", "pydantic", "starlette"):
            raise
        raise NotSupportedError(f"[scale] needs {error.name}: pip install 'kvtrie[ray]'") from error


def __dir__() -> list[str]:
    return sorted(__all__)
