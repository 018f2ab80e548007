"""The OpenAPI description, by schemathesis: whatever it allows is answered as it says, and never with a 500."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import kvtrie as kv
from circles import SOAK
from naming_model import NamingModel
from processes import PATIENCE
from serving import TINY, Served, served

schemathesis = pytest.importorskip("schemathesis")

OPERATIONS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("GET", "/v1/responses/{made}"),
    ("DELETE", "/v1/responses/{made}"),
    ("GET", "/v1/responses/{made}/input_items"),
    ("POST", "/v1/responses/{made}/cancel"),
    ("POST", "/v1/embeddings"),
    ("POST", "/api/chat"),
    ("POST", "/api/generate"),
    ("POST", "/api/show"),
    ("POST", "/api/embed"),
    ("POST", "/api/embeddings"),
    ("GET", "/api/tags"),
    ("GET", "/api/ps"),
    ("GET", "/api/version"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/explain"),
    ("POST", "/flush"),
    ("GET", "/tokenizer_info"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/health"),
    ("GET", "/metrics"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    model = NamingModel(kv.models.load(TINY))
    cache = kv.PrefixCache(model.caches(capacity=2000), fingerprint="naming", host_bytes=1 << 18)
    with served(model, context=256, cache=cache, max_tokens=4) as running:
        yield running


@pytest.fixture(scope="module")
def described(server: Served) -> Any:
    return schemathesis.openapi.from_url(server.url + "/openapi.json")


def test_every_operation_is_described(described: Any) -> None:
    found = {(each.ok().method.upper(), each.ok().path) for each in described.get_all_operations()}
    assert found == set(OPERATIONS)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_what_is_described_is_what_is_answered(server: Served, described: Any, method: str, path: str) -> None:
    from hypothesis import HealthCheck, Phase, given, settings

    operation = described[path][method]

    @settings(
        max_examples=12 if SOAK else 4,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE))
    def allowed(case: Any) -> None:
        response = case.call(timeout=PATIENCE)
        assert response.status_code != 500, (case.body, response.text)
        case.validate_response(response, checks=[schemathesis.checks.not_a_server_error])

    allowed()
    assert server.engine.cache.check() == []
