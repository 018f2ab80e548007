"""How a router ends answers whose replica goes: whole ones are whole, others are seen not to be."""

from __future__ import annotations

import asyncio
from typing import Any, Optional

import pytest

pytest.importorskip("ray")
from kvtrie.ray.scale.asgi_call import Head
from kvtrie.ray.scale.ingress import Gone, _Passed

BODY = b'{"text": "all of it"}'


def passed(kind: bytes, length: Optional[int], *came: bytes) -> list[Any]:
    """The messages of an answer whose replica goes after those parts."""

    async def parts() -> Any:
        for part in came[1:]:
            yield part
        raise Gone

    async def receive() -> Any:
        await asyncio.Event().wait()

    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    headers = [(b"content-type", kind)] + ([] if length is None else [(b"content-length", b"%d" % length)])
    response = _Passed(Head(200, tuple(headers)), came[0], parts(), "/v1/completions")
    asyncio.run(response({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send))
    return messages


@pytest.mark.parametrize("came", [(BODY,), (BODY[:5], BODY[5:])])
def test_an_answer_whose_length_has_come_is_whole(came: tuple[bytes, ...]) -> None:
    """Else the connection is closed, and a client that uses it again finds that out with its next request."""
    start, *body = passed(b"application/json", len(BODY), *came)
    assert start["status"] == 200
    assert b"".join(each["body"] for each in body) == BODY and not body[-1]["more_body"]


@pytest.mark.parametrize("length", [len(BODY), None])
def test_what_is_cut_off_does_not_end(length: Optional[int]) -> None:
    with pytest.raises(Gone):
        passed(b"application/json", length, BODY[:5], BODY[5:-1])


def test_a_stream_ends_with_an_error() -> None:
    *_, error, end = passed(b"text/event-stream; charset=utf-8", None, b"data: {}\n\n")
    assert b"overloaded_error" in error["body"] and not end["more_body"]
