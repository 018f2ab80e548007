"""The live page in a real browser: what is seen, at what width, by keyboard, and when the server is gone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest

import kvtrie as kv
from browsers import Keys, Page, chromium, needs_chromium
from processes import PATIENCE, wait_for
from serving import TINY, Served, served

BEGINNING = "You answer questions about databases, in one short sentence, and you never make anything up."
pytestmark = pytest.mark.ci

HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'


@pytest.fixture(scope="module")
def model() -> Any:
    return kv.models.load(TINY)


@pytest.fixture
def server(model: Any) -> Iterator[Served]:
    with served(model, temperature=0.0) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def page(browser: Any, server: Served) -> Iterator[ServerPage]:
    with opened(browser, server.url + "/") as shown:
        yield shown
        assert shown.errors() == []


@contextmanager
def opened(browser: Any, url: str) -> Iterator[ServerPage]:
    browser.get_log("browser")
    browser.get(url)
    shown = ServerPage(browser)
    shown.look(1600, "light")
    shown.until(lambda: shown.run("return document.body.dataset.link") == "live")
    shown.until(lambda: shown.text("#tokens").replace(",", "").isdigit())
    yield shown
    browser.get("about:blank")  # a server that is watched waits for its pages


class ServerPage(Page):
    """What the tests ask of the page of a server."""

    def until_ended(self, count: int) -> None:
        """So many requests, also in the figures and the tree, which come later: then nothing moves under a click."""
        self.until(lambda: len([each for each in self.texts(".outcome") if each not in ("", "running")]) == count)
        self.until(lambda: self.text("#active-more") == f"0 waiting, {count} finished")


def chat(server: Served, question: str, **fields: Any) -> Any:
    messages = [{"role": "system", "content": BEGINNING}, {"role": "user", "content": question}]
    body = {"messages": messages, "max_tokens": 8, **fields}
    response = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=PATIENCE)
    assert response.status_code == 200, response.text
    return response.json()


# ---- in the browser --------------------------------------------------------------------------------------------------


@needs_chromium
def test_a_server_that_nobody_asked_says_so(page: ServerPage, server: Served) -> None:
    page.until(lambda: page.all("#tree-empty")[0].is_displayed())
    assert page.all("#requests-empty")[0].is_displayed()
    assert f"curl {server.url}/v1/chat/completions" in page.text("#example")
    assert page.all("#nodes .node") == page.all("#requests li") == []
    assert page.run("return document.title") == "tiny · kvtrie"


@needs_chromium
def test_two_requests_that_share_their_beginning(page: ServerPage, server: Served) -> None:
    chat(server, "What is an index?")
    answer = chat(server, "What is a cursor?")
    page.until_ended(2)
    page.until(lambda: len(page.all("#nodes .node:not(.leaving)")) >= 3)  # what they share, and what each has alone
    newest, oldest = page.texts("#requests .prompt .words")
    reused = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reused > 0
    assert newest == f"{reused} reused, {answer['usage']['prompt_tokens'] - reused} computed"
    assert oldest.startswith("0 reused, ")
    assert len(page.all("#first circle")) == 2
    assert not page.all("#requests-empty")[0].is_displayed()


@needs_chromium
def test_roles_are_marks_and_markup_is_not_shown(page: ServerPage, server: Served) -> None:
    chat(server, "What is an <|end|>?")
    chat(server, "Why?")
    page.until_ended(2)
    page.until(lambda: {"system", "user"} <= set(page.texts("#nodes .role")))
    (label,) = [text for text in page.texts("#nodes .label") if "What" in text]
    assert label.startswith("user") and "<|end|>?" in label and "<|assistant|>" not in label  # letters that were typed
    page.all("#nodes .node")[0].click()
    page.until(lambda: page.texts("#details .role")[:1] == ["system"])


@needs_chromium
def test_a_request_opens_to_its_explanation_and_stays_open(page: ServerPage, server: Served) -> None:
    chat(server, "What is an index?")
    chat(server, "What is a cursor?")
    page.until_ended(2)
    why = page.all("#requests .why")[0]
    assert not why.is_displayed()
    page.all("#requests summary")[0].click()
    page.until(why.is_displayed)
    assert "prompt tokens are known" in why.text
    assert "it differs from" in why.text
    chat(server, "And what is a table?")
    page.until_ended(3)
    assert why.is_displayed()


@needs_chromium
def test_what_is_evicted_leaves_the_picture(page: ServerPage, server: Served) -> None:
    chat(server, "What is an index?")
    page.until_ended(1)
    page.until(lambda: page.all("#nodes .node"))
    page.until(lambda: server.engine.cache.stats()["sessions"] == 0)
    server.engine.cache.evict(nbytes=server.engine.cache.stats()["device_bytes"])
    page.until(lambda: not page.all("#nodes .node"))
    page.until(lambda: page.all("#tree-empty")[0].is_displayed())


@needs_chromium
def test_markup_in_a_prompt_stays_text(page: ServerPage, server: Served) -> None:
    chat(server, "What is an index?")
    chat(server, HOSTILE)
    page.until_ended(2)
    page.until(lambda: any("<img src=x" in label for label in page.texts("#nodes .label, .quote")))
    chat(server, HOSTILE + " Again.")
    page.until(lambda: any("</script>" in why for why in page.texts(".why")))
    assert page.run("return document.querySelectorAll('img').length") == 1  # the page's own mark
    assert page.run("return document.querySelectorAll('script').length") == 1
    assert page.run("return window.hit ?? null") is None


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_nothing_is_wider_than_the_page(page: ServerPage, server: Served, width: int, scheme: str) -> None:
    page.look(width, scheme)
    chat(server, "What is an index? " + "x" * 100)
    chat(server, HOSTILE)
    page.until_ended(2)
    page.all("#requests summary")[0].click()
    page.until(lambda: page.run("return +document.getElementById('nodes').getAttribute('width')") > 0)
    assert page.run("return document.documentElement.scrollWidth") <= width
    assert page.run("return document.body.scrollWidth") <= width
    wide = "return [...document.querySelectorAll('.card, .card *')].filter(e => !e.closest('svg') && "
    wide += "e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 80))"
    assert page.run(wide) == []
    ground = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, ground.strip("rgb()").split(","))) > 128) == (scheme == "light")


@needs_chromium
def test_the_tree_by_keyboard(page: ServerPage, server: Served) -> None:
    chat(server, "What is an index?")
    chat(server, "What is a cursor?")
    page.until_ended(2)
    page.until(lambda: len(page.all("#nodes .node")) >= 3)
    page.run("document.querySelector('#nodes .node[tabindex=\"0\"]').focus()")
    top = page.run("return document.activeElement.dataset.id")
    page.browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    page.until(lambda: page.run("return document.activeElement.dataset.id") != top)
    assert "tokens" in page.text("#details")
    assert page.run("return document.querySelectorAll('#nodes .node[tabindex=\"0\"]').length") == 1
    page.browser.switch_to.active_element.send_keys(Keys.HOME)
    page.until(lambda: page.run("return document.activeElement.dataset.id") == top)


@needs_chromium
def test_a_server_that_is_gone_and_there_again(browser: Any, server: Served) -> None:
    with between(server) as line, opened(browser, f"http://127.0.0.1:{line.port}/") as page:
        chat(server, "What is an index?")
        page.until_ended(1)
        line.cut()
        page.until(lambda: "The server is gone since" in page.text("#gone"))
        assert page.all("#gone")[0].is_displayed()
        assert len(page.all("#requests li")) == 1  # what was known stays
        wait_for(lambda: not server.engine.journal.listeners)  # the server knows, too
        chat(server, "What is a cursor?")
        line.mend()
        page.until(lambda: page.run("return document.body.dataset.link") == "live")
        page.until_ended(2)
        assert not page.all("#gone")[0].is_displayed()
        assert "prompt tokens were known" in page.texts(".why")[0]


class Line:
    """A way to the server that can be cut: then all connections end, and new ones at once."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._whole = True
        self._lock = threading.Lock()  # what comes while it is cut is cut as well
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if not self._whole:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._server.port))
                self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=self._copy, args=(source, sink)))
                self._threads[-1].start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass  # one of them was shut
        _shut(sink)

    def cut(self) -> None:
        with self._lock:
            self._whole = False
            for each in self._open:
                _shut(each)

    def mend(self) -> None:
        self._whole = True

    def close(self) -> None:
        self.cut()
        _shut(self._listener)
        for thread in self._threads:
            thread.join(PATIENCE)
        for each in (self._listener, *self._open):
            each.close()


def _shut(one: socket.socket) -> None:
    with suppress(OSError):  # the other side was faster
        one.shutdown(socket.SHUT_RDWR)


@contextmanager
def between(server: Served) -> Iterator[Line]:
    line = Line(server)
    try:
        yield line
    finally:
        line.close()


@pytest.mark.parametrize("width", [1240, 1300, 1440, 1600])
def test_columns_of_requests_are_not_cut(page: ServerPage, server: Served, width: int) -> None:
    body = {"prompt": "A cache is " * 60, "max_tokens": 2}
    for _ in range(2):
        assert httpx.post(server.url + "/v1/completions", json=body, timeout=PATIENCE).status_code == 200
    page.until(lambda: len(page.all("#requests .stop, #requests .length")) == 2)
    page.look(width, "light")
    cut = "return [...document.querySelectorAll('#requests .words, #requests .api, #requests .outcome')]"
    assert page.run(f"{cut}.filter((each) => each.scrollWidth > each.clientWidth + 1).length") == 0


def test_a_refused_request_is_shown_with_what_was_said(page: ServerPage, server: Served) -> None:
    said = httpx.post(server.url + "/v1/completions", json={"prompt": "a", "temperature": 9}, timeout=PATIENCE)
    assert said.status_code == 400
    page.until(lambda: len(page.all("#requests .refused")) == 1)
    assert "temperature" in page.text("#requests .refused .words")


def test_one_slow_request_does_not_flatten_the_others(page: ServerPage) -> None:
    module = "import(new URL('requests.js', document.querySelector('script[type=module]').src))"
    look = "((axis) => [axis.least, axis.most, axis.share(0.048), axis.share(0.4), axis.share(9.7)])(m.makeAxis(T))"
    least, most, low, middle, high = page.run(f"return {module}.then((m) => {look.replace('T', '[0.048, 0.4, 9.7]')})")
    assert (round(least, 6), round(most, 6)) == (0.02, 10)
    assert 0.1 < low < 0.2 and 0.4 < middle < 0.6 and 0.95 < high < 1
    assert page.run(f"return {module}.then((m) => {look.replace('T', '[]')})")[:2] == [0, 0]
    one = page.run(f"return {module}.then((m) => {look.replace('T', '[0.05]')})")
    assert one[0] < one[1] and 0 <= one[2] <= 1
