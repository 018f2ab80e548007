"""A watched cache without a browser: what a page is sent, what clicks do, and how it ends."""

from __future__ import annotations

import gc
import json
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from jupyter_client.manager import start_new_kernel

import kvtrie as kv
from kvtrie import viz
from kvtrie.viz import watching
from processes import PATIENCE, PYTHON_PATH, run_python, wait_for
from watched import COMMON, Wire, compute, fill, make_cache, needs_anywidget, row, say, shown, wired

pytestmark = needs_anywidget
WIDGET = "application/vnd.jupyter.widget-view+json"
HOSTILE = '</svg><script>window.hit=1</script><img src=x onerror="window.hit=1">'


@pytest.fixture
def cache() -> Iterator[kv.PrefixCache]:
    with make_cache() as made:
        fill(made, 50, 51)
        fill(made, 60, 61)
        yield made


@pytest.fixture
def watched(cache: kv.PrefixCache) -> Iterator[viz.Watch]:
    with wired():
        watch = viz.watch(cache)
        watch._repr_mimebundle_()
        yield watch
        watch.close()


def click(watch: viz.Watch, command: str, node: Any) -> tuple[str, str]:
    """What a page shows after a click."""
    say(watch, kind="do", page="a", command=command, node=node, ticket="t1")
    picture = shown(watch)
    assert picture["ticket"] == "t1"
    return tuple(picture["notice"])


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_a_notebook_gets_a_widget_and_readers_the_svg(cache: kv.PrefixCache) -> None:
    with wired():
        watch = viz.watch(cache)
        bundle = watch._repr_mimebundle_()
        assert {"text/plain", "text/html", WIDGET} == set(bundle)
        assert "<svg" in str(bundle["text/html"]) and "<script" not in str(bundle["text/html"])
        assert bundle["text/plain"] == repr(watch)
        watch.close()
        assert WIDGET not in watch._repr_mimebundle_()


def test_the_picture_names_each_node_and_says_what_is_known(watched: viz.Watch) -> None:
    picture = shown(watched)
    drawing = ElementTree.fromstring(picture["svg"])
    named = [each.attrib["data-node"] for each in drawing.iter() if "data-node" in each.attrib]
    assert sorted(named) == sorted(picture["rows"]) and len(named) == 3
    assert picture["rows"][row(watched, 0, 10)]["facts"].endswith("shared by 2 branches")
    assert ["prompts", "2, 1 found something"] in picture["figures"]
    assert ["tokens", "10 reused (42%), 14 computed"] in picture["figures"]
    json.dumps(picture)


def test_names_of_nodes_stay_when_they_grow_or_are_split(watched: viz.Watch, cache: kv.PrefixCache) -> None:
    upper, lower = row(watched, 0, 10), row(watched, 10, 12)
    fill(cache, 50, 51, 52)  # goes on below
    with cache.begin([*COMMON[:5], 99]) as session:  # cuts what is common
        for step in session.prefill():
            compute(step)
        watched.refresh()
        assert row(watched, 0, 5) == upper
    assert lower in shown(watched)["rows"]


def test_hits_and_misses_come_by_themselves(watched: viz.Watch, cache: kv.PrefixCache) -> None:
    with watched._lock:  # no look comes between a prompt's beginning and what it computes
        fill(cache, 70)
    wait_for(lambda: ["hit", "1 prompt reused 10 tokens"] in shown(watched)["events"])
    with watched._lock:
        fill(cache, 70, namespace="other")
    wait_for(lambda: ["miss", "1 prompt found nothing"] in shown(watched)["events"])
    assert ["work", "11 tokens computed"] in shown(watched)["events"]
    cache.page_out([*COMMON, 50, 51])
    wait_for(lambda: ["move", "128 B paged out"] in shown(watched)["events"])
    cache.evict([*COMMON, 50, 51])
    wait_for(lambda: ["loss", "2 tokens evicted"] in shown(watched)["events"])


def test_nothing_is_sent_while_nothing_happens(watched: viz.Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_AGES", PATIENCE)
    watched.refresh()  # a look that was under way with the old value is over
    before = shown(watched)
    looks = []
    stats = kv.PrefixCache.stats
    monkeypatch.setattr(kv.PrefixCache, "stats", lambda self: looks.append(1) or stats(self))
    wait_for(lambda: len(looks) > 3)
    assert shown(watched) == before


def test_texts_of_users_stay_texts(cache: kv.PrefixCache) -> None:
    with wired():
        watch = viz.watch(cache, lambda ids: HOSTILE)
        html = str(watch._repr_mimebundle_()["text/html"])
        picture = shown(watch)
        for page in (html, picture["svg"]):
            assert "<script" not in page and "<img" not in page and "&lt;script" in page
        ElementTree.fromstring(picture["svg"])
        assert picture["rows"][row(watch, 0, 10)]["text"] == HOSTILE
        watch.close()


def test_what_decode_raises_is_shown_and_the_tree_all_the_same(cache: kv.PrefixCache) -> None:
    def decode(ids: list[int]) -> str:
        raise RuntimeError("no such token")

    with wired():
        watch = viz.watch(cache, decode)
        assert "RuntimeError: no such token" in str(watch._repr_mimebundle_()["text/html"])
        picture = shown(watch)
        assert picture["notice"] == ["problem", "decode raised RuntimeError: no such token"]
        assert len(picture["rows"]) == 3 and "<svg" in picture["svg"]
        watch.close()


def test_a_huge_tree_is_drawn_within_bounds() -> None:
    with wired(), make_cache() as cache:
        for token in range(40):
            fill(cache, 100 + token)
        watch = viz.watch(cache, max_nodes=12)
        watch._repr_mimebundle_()
        picture = shown(watch)
        assert len(picture["rows"]) <= 12 and "more nodes" in picture["svg"]
        watch.close()


@pytest.mark.parametrize(
    ("arguments", "options", "where"),
    [
        ((None,), {}, "cache"),
        (("x",), {}, "cache"),
        ((...,), {"decode": 3}, "decode"),
        ((...,), {"max_nodes": 0}, "max"),
    ],
)
def test_wrong_arguments_are_refused(cache: kv.PrefixCache, arguments: Any, options: Any, where: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"\[watch\] {where}"):
        viz.watch(cache if arguments == (...,) else arguments[0], **options)


# --- clicks -----------------------------------------------------------------------------------------------------------


def test_branch_begins_a_session_to_go_on_with(watched: viz.Watch, cache: kv.PrefixCache) -> None:
    assert click(watched, "branch", row(watched, 0, 10)) == ("done", "Session 0 stands at token 10.")
    assert shown(watched)["sessions"] == [[0, "session 0 stands at token 10"]]
    session = watched.sessions[0]
    session.append(77)
    assert np.asarray(compute(session.decode())).shape == (1, 1, 8)
    assert cache.stats()["sessions"] == 1
    assert click(watched, "close", 0) == ("done", "Session 0 is closed.")
    assert session.closed and shown(watched)["sessions"] == []


def test_page_out_moves_all_branches_but_what_they_share(watched: viz.Watch, cache: kv.PrefixCache) -> None:
    kind, words = click(watched, "page_out", row(watched, 0, 10))
    assert kind == "done" and words.startswith("Paged out: ")
    assert [node.tier for node in cache.nodes()] == ["device", "host", "host"]
    assert click(watched, "page_out", row(watched, 0, 10))[1].startswith("Nothing was freed")
    assert click(watched, "page_in", row(watched, 10, 12)) == ("done", "12 of 12 tokens are on the device.")
    assert sorted(node.tier for node in cache.nodes()) == ["device", "device", "host"]


def test_evict_takes_one_branch_or_all(watched: viz.Watch, cache: kv.PrefixCache) -> None:
    assert click(watched, "evict", row(watched, 10, 12))[0] == "done"
    assert sorted(cache.plan([*COMMON, token, token + 1, 1]).matched for token in (50, 60)) == [10, 12]
    assert click(watched, "evict", next(iter(shown(watched)["rows"])))[0] == "done"
    assert cache.nodes() == [] and "Nothing is stored yet" in shown(watched)["svg"]


def test_pin_and_unpin(watched: viz.Watch, cache: kv.PrefixCache) -> None:
    assert click(watched, "pin", row(watched, 0, 10)) == ("done", "10 tokens pinned.")
    assert click(watched, "page_out", row(watched, 0, 10))[1].startswith("Paged out")  # what is below
    assert cache.plan([*COMMON, 1]).tier == "device"
    assert click(watched, "pin", row(watched, 0, 10)) == ("done", "10 tokens unpinned.")


def test_what_a_click_raises_is_shown(watched: viz.Watch, cache: kv.PrefixCache) -> None:
    gone = row(watched, 10, 12)
    cache.evict(nbytes=cache.stats()["device_bytes"])
    assert click(watched, "branch", gone) == (
        "problem", "ArgumentError: [watch] node: got one that has left the tree, allowed one that is in it"
    )  # fmt: skip
    assert "[watch] command: got 'rm'" in click(watched, "rm", gone)[1]
    assert "[watch] session: got 0" in click(watched, "close", 0)[1]
    for odd in (None, [], {"a": 1}, True, 3.5, "x" * 9999):
        assert click(watched, odd, odd)[0] == "problem"
        assert click(watched, "evict", odd)[0] == "problem"
        say(watched, kind=odd, page=odd)
    watched.hear(None), watched.hear([1]), watched.hear("here")


def test_no_room_on_the_device_is_shown() -> None:
    with wired(), make_cache() as cache:
        fill(cache, 50)
        watch = viz.watch(cache)
        watch._repr_mimebundle_()
        name = row(watch, 0, 11)
        cache.page_out([*COMMON, 50])
        with cache.begin(list(range(1000, 1256)), reuse_all=True) as session:
            for step in session.prefill():
                compute(step)
            kind, words = click(watch, "branch", name)
            assert (kind, words) == ("done", "Session 0 stands at token 0, 11 tokens to compute.")
        watch.close()


# --- ends -------------------------------------------------------------------------------------------------------------


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "kvtrie-watch"]


def test_a_cache_that_is_closed_while_it_is_watched(watched: viz.Watch, cache: kv.PrefixCache) -> None:
    name, thread = row(watched, 10, 12), watched._thread
    assert thread is not None
    cache.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert shown(watched)["over"] == "This cache is closed." and "<svg" in shown(watched)["svg"]  # as it was
    assert click(watched, "evict", name)[0] == "problem"
    say(watched, kind="here", page="a")
    assert watched._thread is thread  # nobody looks any more
    assert "is closed" in watched.to_html()


def test_a_cache_lives_no_longer_for_being_watched() -> None:
    cache = make_cache()
    fill(cache, 50)
    with wired():
        watch = viz.watch(cache)
        watch._repr_mimebundle_()
        ref = weakref.ref(cache)
        del cache

        def gone() -> bool:
            gc.collect()
            return ref() is None

        wait_for(gone)
        wait_for(lambda: "over" in shown(watch))
        assert "gone" in repr(watch)
        watch.close()


def test_closing_ends_the_thread_and_lets_go_of_sessions(watched: viz.Watch, cache: kv.PrefixCache) -> None:
    click(watched, "branch", row(watched, 0, 10))
    thread, front = watched._thread, watched._front
    assert front is not None and thread is not None and thread.is_alive()
    wire = front.comm
    watched.close(), watched.close()
    assert not thread.is_alive() and watched.closed and watched.sessions == []
    assert wire.sent[-1][0] == "comm_close" and front.comm is None
    gc.collect()
    assert cache.stats()["sessions"] == 0
    watched.hear({"kind": "here", "page": "a"}), watched.refresh()
    assert watched._thread is thread


def test_a_widget_that_the_front_end_deletes(watched: viz.Watch) -> None:
    front, thread = watched._front, watched._thread
    assert front is not None and thread is not None
    front.comm.handle_close({})
    assert watched.closed and not thread.is_alive()


def test_the_last_page_that_leaves_ends_the_thread_and_the_next_one_starts_it(watched: viz.Watch) -> None:
    say(watched, kind="here", page="a")
    say(watched, kind="here", page="b")
    first = watched._thread
    assert first is not None
    say(watched, kind="bye", page="a")
    assert first.is_alive() and not watched._stop.is_set()
    say(watched, kind="bye", page="b")
    first.join(PATIENCE)
    assert not first.is_alive()
    say(watched, kind="here", page="c")
    assert watched._thread is not first and watched._thread is not None and watched._thread.is_alive()


def test_pages_that_fall_silent(watched: viz.Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = watched._thread
    assert thread is not None
    monkeypatch.setattr(watching, "_PATIENCE", 0.0)
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_each_page_is_answered_once(watched: viz.Watch) -> None:
    front = watched._front
    assert front is not None
    heard = [data for _, data in front.comm.sent if (data or {}).get("content") == {"kind": "heard"}]
    say(watched, kind="here", page="a")
    after = [data for _, data in front.comm.sent if (data or {}).get("content") == {"kind": "heard"}]
    assert len(after) == len(heard) + 1


def test_a_kernel_that_cannot_send_ends_the_thread(watched: viz.Watch, cache: kv.PrefixCache) -> None:
    front, thread = watched._front, watched._thread
    assert front is not None and thread is not None
    front.comm.broken = OSError("the socket is closed")
    fill(cache, 70)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    front.comm.broken = None


def test_two_widgets_on_one_cache(cache: kv.PrefixCache) -> None:
    with wired():
        one, other = viz.watch(cache), viz.watch(cache)
        one._repr_mimebundle_(), other._repr_mimebundle_()
        click(one, "evict", row(one, 10, 12))
        wait_for(lambda: len(shown(other)["rows"]) == len(shown(one)["rows"]) == 1)
        one.close()
        fill(cache, 80)
        wait_for(lambda: len(shown(other)["rows"]) == 3 and ["work", "1 token computed"] in shown(other)["events"])
        other.close()
    assert not threads()


def test_without_a_kernel_there_is_no_thread(cache: kv.PrefixCache) -> None:
    watch = viz.watch(cache)
    assert "<svg" in str(watch._repr_mimebundle_()["text/html"])
    assert watch._thread is None
    watch.close()


def test_without_anywidget_it_is_the_svg(cache: kv.PrefixCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "kvtrie.viz.front", raising=False)
    bundle = viz.watch(cache)._repr_mimebundle_()
    assert WIDGET not in bundle and "<svg" in str(bundle["text/html"])


def test_commands_while_others_use_the_cache(watched: viz.Watch, cache: kv.PrefixCache) -> None:
    """Clicks, looks and conversations at the same time: nothing is raised, and every invariant holds."""
    raised: list[BaseException] = []

    def talk() -> None:
        try:
            for round_ in range(30):
                fill(cache, 100 + round_ % 5, round_)
        except BaseException as error:
            raised.append(error)

    talkers = [threading.Thread(target=talk) for _ in range(2)]
    for each in talkers:
        each.start()
    for turn in range(60):
        names = list(shown(watched)["rows"])
        if names:
            click(watched, ("page_out", "evict", "page_in", "pin")[turn % 4], names[turn % len(names)])
    for each in talkers:
        each.join(PATIENCE)
    assert raised == [] and cache.check() == []


ENDING = """
import sys
sys.path.insert(0, {tests!r})
from kvtrie import viz
from watched import fill, make_cache, shown, wired
cache = make_cache()
fill(cache, 50)
with wired():
    watch = viz.watch(cache)
    watch._repr_mimebundle_()
    assert watch._thread.is_alive()
    print("watched")
"""


def test_an_interpreter_that_ends_while_it_is_watched() -> None:
    result = run_python("-W", "error", "-c", ENDING.format(tests=str(Path(__file__).parent)))
    assert (result.returncode, result.stdout, result.stderr) == (0, "watched\n", "")


def test_importing_the_drawings_needs_no_widget() -> None:
    program = "import sys, kvtrie.viz; print([m for m in ('anywidget', 'ipywidgets', 'comm') if m in sys.modules])"
    assert run_python("-c", program).stdout == "[]\n"


def test_a_wire_is_what_a_kernel_has() -> None:
    """The names that a comm of ipykernel has, which the tests' own stands for."""
    ipykernel = pytest.importorskip("ipykernel.comm")
    assert all(hasattr(ipykernel.Comm, name) for name in ("publish_msg", "on_msg", "on_close", "handle_msg", "close"))
    assert issubclass(ipykernel.Comm, Wire.__mro__[1])


# --- in a real kernel -------------------------------------------------------------------------------------------------

SHOWING = """
import sys
sys.path[:0] = {paths!r}
from watched import fill, make_cache
from kvtrie import viz
cache = make_cache()
watch = viz.watch(cache)
watch
"""
WORKING = """
import time
fill(cache, 50)
shown = False
while not shown:
    time.sleep(0.01)
    with watch._lock:  # what is in the state has been sent, so it comes before this cell's end
        shown = ["miss", "1 prompt found nothing"] in watch._front.state.get("events", [])
"""


def test_pictures_come_while_a_cell_runs_and_the_kernel_ends(tmp_path: Path) -> None:
    manager, client = start_new_kernel(PATIENCE, "python3", cwd=str(tmp_path))
    try:
        pictures: list[dict[str, Any]] = []
        shown_by: list[str] = []

        def keep(message: Any) -> None:
            content = message["content"]
            if message["msg_type"] == "comm_msg":
                pictures.append(content["data"].get("state", {}).get("state", {}))
            shown_by.extend(content["data"] if message["msg_type"] == "execute_result" else [])

        show = SHOWING.format(paths=PYTHON_PATH)
        for code in (show, WORKING):
            reply = client.execute_interactive(code, timeout=PATIENCE, output_hook=keep)
            assert reply["content"]["status"] == "ok", reply["content"]
        assert WIDGET in shown_by and "text/html" in shown_by
        assert any(["miss", "1 prompt found nothing"] in picture.get("events", []) for picture in pictures)
        client.shutdown()
        process = manager.provisioner.process
        assert process.wait(PATIENCE) == 0
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
