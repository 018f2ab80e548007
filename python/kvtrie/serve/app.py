"""The application: all routes of one model, around one engine.

    from kvtrie.serve.app import create_app

    app = create_app(model, cache, "my-model", Settings(context=8192))    # for uvicorn, or any server of ASGI

Its end closes the engine with all requests, the cache, and the responses that are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from .._core import __version__
from ..models.base import Model
from ..prefix_cache import PrefixCache
from . import anthropic_api, failures, live, ollama_api, openai_api, responses_api, tools_api
from .body import WholeBodies
from .engine import Engine
from .extra_headers import DESCRIBED, ExtraHeaders
from .json_values import JsonObject
from .metrics import Figures
from .refusals import Refusals
from .responses_store import ResponseStore
from .settings import Settings
from .tenants import Tenants
from .visitors import Visitors
from .wire import JsonResponse


def create_app(model: Model, cache: PrefixCache, name: str, settings: Settings) -> FastAPI:
    """``name``: what clients call the model. ``app.state`` has the ``engine``, and who looks at the page: ``watch``."""
    engine = Engine(model, cache, name, settings)
    responses = ResponseStore(settings.responses, settings.kept_responses)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            try:
                await asyncio.to_thread(engine.close)
            finally:
                responses.close()

    app = FastAPI(
        title="kvtrie", version=__version__, lifespan=lifespan, openapi_url=None, default_response_class=JsonResponse
    )
    app.state.engine = engine
    tenants, figures = Tenants(settings), Figures(engine)
    app.state.watch = live.Watch(engine)
    routers = (
        openai_api.router(engine, tenants),
        anthropic_api.router(engine, tenants),
        responses_api.router(engine, tenants, responses),
        ollama_api.router(engine, tenants),
        tools_api.router(engine, tenants),
        live.router(engine, tenants, app.state.watch),
    )
    for router in routers:
        app.include_router(router)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> JsonResponse:
        """The description of all this; making it takes too long for the event loop."""
        return JsonResponse(await asyncio.to_thread(app.openapi))

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether it answers."""
        return {"status": "closing" if engine.batcher.closed else "ok"}

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Figures for Prometheus."""
        tenants.require_admin(request)
        return Response(figures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/flush")
    async def flush(request: Request) -> dict[str, bool]:
        """Answers when the disk has all that is idle now: what a server that is killed afterwards comes back with."""
        tenants.require_admin(request)
        return {"saved": await asyncio.to_thread(cache.flush)}

    failures.install(app, [str(getattr(route, "path", "")) for router in routers for route in router.routes])
    values = settings.max_values + 16 * settings.context
    most, seconds, objects = settings.max_body, settings.body_seconds, settings.max_objects
    app.add_middleware(WholeBodies, most=most, seconds=seconds, objects=objects, values=values)
    hosts = None if settings.keys else settings.hosts
    app.add_middleware(Visitors, hosts=hosts, origins=settings.origins)
    if engine.describes_tools:
        app.add_middleware(ExtraHeaders, headers=DESCRIBED)
    app.add_middleware(Refusals, journal=engine.journal)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


_ERRORS = {
    "400": "wrong fields",
    "401": "no such key",
    "403": "not for this origin, or closed",
    "404": "there is none",
    "408": "the body came too slowly",
    "413": "the body is too large",
    "415": "not JSON",
    "429": "too many wait",
    "500": "the server's own failure",
    "503": "no room, or closing",
}


def _described(app: FastAPI) -> JsonObject:
    """The OpenAPI description, with the errors as they are."""
    if app.openapi_schema is None:
        described = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for operations in described["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                content = {"application/json": {"schema": {"type": "object"}}}
                for status, what in _ERRORS.items():
                    operation["responses"][status] = {"description": what, "content": content}
        app.openapi_schema = described
    return app.openapi_schema
