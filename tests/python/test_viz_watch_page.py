"""The page of a watched cache in a real browser: the module as it is shipped, between two sides that talk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from browsers import Keys, Page, chromium, needs_chromium
from kvtrie import viz
from watched import fill, make_cache, needs_anywidget, say, shown, wired

pytestmark = [needs_chromium, needs_anywidget]

FOLDER = Path(viz.__file__).parent / "page"
HOSTILE = '</svg><script>window.hit=1</script><img src=x onerror="window.hit=1">'
# What anywidget gives a module: a model with a state, and an element.
MODEL = """
const [source, css, done] = arguments;
document.body.innerHTML = '<div id="place"></div>';
const style = document.createElement("style");
style.textContent = css;
document.head.append(style);
const listeners = { "change:state": new Set(), "msg:custom": new Set() };
window.sent = [];
window.model = {
  state: {},
  get: (name) => window.model[name],
  on: (name, call) => listeners[name].add(call),
  off: (name, call) => listeners[name].delete(call),
  send: (message) => window.sent.push(JSON.stringify(message)),
  tell: (name, value) => listeners[name].forEach((call) => call(value)),
  count: () => listeners["change:state"].size + listeners["msg:custom"].size,
};
import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })))
  .then((module) => {
    window.leave = module.default.render({ model, el: document.getElementById("place") });
    done("");
  })
  .catch((error) => done(String(error)));
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def cache() -> Iterator[kv.PrefixCache]:
    with make_cache() as made:
        fill(made, 50, 51)
        fill(made, 60, 61)
        yield made


class WatchPage(Page):
    """A page, and the watch whose pictures it gets and whose commands it sends."""

    def __init__(self, browser: Any, watch: viz.Watch) -> None:
        super().__init__(browser)
        self.watch = watch

    def pass_on(self) -> None:
        """What the page has said to the watch, and the newest picture to the page."""
        for message in self.run("return window.sent.splice(0)"):
            say(self.watch, **json.loads(message))
        self.run(
            "model.state = JSON.parse(arguments[0]);"
            "model.tell('change:state'); model.tell('msg:custom', {kind: 'heard'})",
            json.dumps(shown(self.watch)),
        )

    def rows(self) -> list[Any]:
        return self.all("g[data-node]")

    def press(self, label: str) -> None:
        next(each for each in self.all("button") if each.text == label).click()
        self.pass_on()

    def notice(self) -> str:
        return self.text(".kw-notice")


@contextmanager
def opened(browser: Any, watch: viz.Watch, scheme: str = "light", width: int = 1000) -> Iterator[WatchPage]:
    watch._repr_mimebundle_()
    browser.get("about:blank")
    browser.get_log("browser")
    page = WatchPage(browser, watch)
    page.look(width, scheme)
    sources = [(FOLDER / name).read_text(encoding="utf-8") for name in ("watch.js", "watch.css")]
    assert browser.execute_async_script(MODEL, *sources) == ""
    page.pass_on()
    yield page
    assert page.errors() == []


@pytest.fixture
def page(browser: Any, cache: kv.PrefixCache) -> Iterator[WatchPage]:
    with wired():
        watch = viz.watch(cache)
        with opened(browser, watch) as made:
            yield made
        watch.close()


def test_the_tree_is_drawn_and_a_click_says_what_a_node_is(page: WatchPage) -> None:
    assert len(page.rows()) == 3
    assert page.text(".kw-chosen .kw-title") == "Click a node"
    assert not any(button.is_enabled() for button in page.all(".kw-buttons button"))
    page.rows()[0].click()
    assert page.text(".kw-chosen .kw-title") == "tokens 0 to 10"
    assert "shared by 2 branches" in page.text(".kw-facts")
    assert len(page.all("g.kw-selected")) == 1
    assert all(button.is_enabled() for button in page.all(".kw-buttons button"))


def test_clicks_branch_page_out_and_evict(page: WatchPage, cache: kv.PrefixCache) -> None:
    page.rows()[1].click()
    page.press("Page out")
    assert page.notice().startswith("Paged out: ")
    assert cache.stats()["host_tokens"] == 2
    page.rows()[0].click()
    page.press("Branch")
    assert page.notice() == "Session 0 stands at token 10."
    assert page.text(".kw-session").startswith("session 0 stands at token 10")
    assert page.watch.sessions[0].length == 10
    page.press("Close")
    assert page.all(".kw-session") == [] and cache.stats()["sessions"] == 0
    page.rows()[0].click()
    page.press("Evict")
    assert page.rows() == [] and cache.nodes() == []
    assert page.text(".kw-chosen .kw-title") == "Click a node"


def test_what_happened_comes_newest_first(page: WatchPage, cache: kv.PrefixCache) -> None:
    fill(cache, 70, namespace="other")
    page.watch.refresh()
    fill(cache, 71)
    page.watch.refresh()
    page.pass_on()
    happened = page.texts(".kw-events li")
    assert happened.index("1 prompt reused 10 tokens") < happened.index("1 prompt found nothing")
    assert "4, 2 found something" in page.text(".kw-figures")


def test_buttons_wait_until_the_kernel_has_answered(page: WatchPage) -> None:
    page.rows()[1].click()
    next(each for each in page.all("button") if each.text == "Page out").click()
    assert page.notice() == "Waiting for the kernel ..."
    page.run("model.tell('change:state')")  # a picture that is no answer
    assert not any(button.is_enabled() for button in page.all(".kw-buttons button"))
    page.pass_on()
    assert all(button.is_enabled() for button in page.all(".kw-buttons button"))


def test_an_error_is_shown(page: WatchPage, cache: kv.PrefixCache) -> None:
    page.rows()[1].click()
    cache.evict(nbytes=cache.stats()["device_bytes"])
    next(each for each in page.all("button") if each.text == "Branch").click()
    page.pass_on()
    assert "ArgumentError: [watch] node: got one that has left the tree" in page.notice()


def test_by_keyboard(page: WatchPage) -> None:
    page.run("document.querySelector('g[data-node]').focus()")
    page.browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    second = page.run("return document.activeElement.dataset.node")
    assert second == page.rows()[1].get_attribute("data-node")
    page.browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.text(".kw-chosen .kw-title") == "tokens 10 to 12"
    page.watch.refresh()
    page.run("document.querySelector('.kw-drawing svg').setAttribute('data-old', '1')")
    page.pass_on()  # ages may have changed: the focus stays where it was
    assert page.run("return document.activeElement.dataset.node") == second


def test_a_cache_that_is_closed(page: WatchPage, cache: kv.PrefixCache) -> None:
    cache.close()
    page.watch.refresh()
    page.pass_on()
    assert page.notice() == "This cache is closed."
    assert len(page.rows()) == 3
    page.rows()[0].click()
    assert not any(button.is_enabled() for button in page.all(".kw-buttons button"))


def test_a_page_that_leaves_says_so_and_listens_no_more(page: WatchPage) -> None:
    assert page.run("return model.count()") == 2
    page.run("window.leave()")
    assert page.run("return model.count()") == 0
    last = json.loads(page.run("return window.sent.at(-1)"))
    assert last["kind"] == "bye"
    say(page.watch, **last)
    assert page.watch._stop.is_set()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1000])
def test_hostile_texts_and_nothing_wider_than_the_page(
    browser: Any, cache: kv.PrefixCache, width: int, scheme: str
) -> None:
    with wired():
        watch = viz.watch(cache, lambda ids: HOSTILE + "x" * 200)
        with opened(browser, watch, scheme, width) as page:
            page.rows()[0].click()
            page.press("Branch")
            assert page.text(".kw-quote").startswith(HOSTILE)
            assert page.run("return document.querySelectorAll('img, script').length") == 0
            assert page.run("return window.hit ?? null") is None
            assert page.run("return document.documentElement.scrollWidth") <= width
            ground = page.run("return getComputedStyle(document.querySelector('.kvtrie-watch')).backgroundColor")
            assert (max(map(int, ground.strip("rgb()").split(","))) > 128) == (scheme == "light")
        watch.close()


def test_the_theme_of_a_notebook_goes_first(page: WatchPage) -> None:
    """JupyterLab in dark on a system in light."""
    page.run("document.body.style.setProperty('--jp-layout-color1', 'rgb(17, 17, 17)')")
    for selector, name in ((".kvtrie-watch", "backgroundColor"), (".kvt-card", "fill")):
        look = page.run(f"return getComputedStyle(document.querySelector(arguments[0])).{name}", selector)
        assert look == "rgb(17, 17, 17)"


def test_two_pages_of_one_watch(page: WatchPage) -> None:
    say(page.watch, kind="here", page="another")
    page.run("window.leave()")
    page.pass_on()
    assert page.watch._thread is not None and not page.watch._stop.is_set()
