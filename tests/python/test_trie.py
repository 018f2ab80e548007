"""The trie alone, against a dictionary that does the same slowly."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import kvtrie as kv

SEED = 20260


def test_match_is_the_longest_common_beginning() -> None:
    trie = kv.trie.PrefixTrie()
    node = trie.insert([1, 2, 3, 4], nbytes=40)
    assert (node.start, node.end, node.nbytes, node.is_end, node.namespace) == (0, 4, 40, True, "default")
    assert trie.match([1, 2, 3, 4]) == (4, node)
    assert trie.match([1, 2, 3, 4, 5]) == (4, node)
    assert trie.match([1, 2, 9]) == (2, node)
    assert trie.match([9]) == (0, None)
    assert trie.match([]) == (0, None)
    np.testing.assert_array_equal(node.tokens, [1, 2, 3, 4])
    assert node.tokens.dtype == np.int32
    assert (len(trie), trie.token_count, trie.nbytes) == (1, 4, 40)


def test_a_fork_splits_the_edge_and_its_bytes() -> None:
    trie = kv.trie.PrefixTrie()
    first = trie.insert([1, 2, 3, 4], nbytes=40)
    second = trie.insert([1, 2, 8], nbytes=7)
    length, upper = trie.match([1, 2])
    assert (length, len(trie), trie.nbytes) == (2, 3, 47)
    assert upper is not None
    assert (upper.child_count, upper.nbytes, upper.is_end) == (2, 20, False)
    assert (first.start, first.nbytes, second.start, second.nbytes) == (2, 20, 2, 7)
    assert trie.check() == []


def test_namespaces_share_nothing() -> None:
    trie = kv.trie.PrefixTrie()
    trie.insert([1, 2, 3], namespace="a")
    assert trie.match([1, 2, 3], "a")[0] == 3
    assert trie.match([1, 2, 3], namespace="b") == (0, None)
    assert trie.match([1, 2, 3]) == (0, None)


def test_the_least_recently_used_leaf_goes_first_tail_first() -> None:
    trie = kv.trie.PrefixTrie()
    a = trie.insert([1, 2, 3, 4], nbytes=40)
    b = trie.insert([5, 6], nbytes=20)
    trie.touch(a)
    (gone,) = trie.evict()
    assert (gone.namespace, gone.start, gone.nbytes, list(gone.tokens)) == ("default", 0, 20, [5, 6])
    assert not b.alive
    (tail,) = trie.evict(nbytes=15)
    assert (tail.start, tail.nbytes, list(tail.tokens)) == (2, 20, [1, 2, 3, 4])
    assert trie.match([1, 2, 3, 4])[0] == 2
    assert len(trie.evict(count=5)) == 1
    assert len(trie) == 0
    assert trie.evict() == []


def test_locks_keep_a_node_and_all_above_it() -> None:
    trie = kv.trie.PrefixTrie()
    trie.insert([1, 2], nbytes=1)
    below = trie.insert([1, 2, 3], nbytes=1)
    trie.lock(below)
    assert below.locks == 1
    assert trie.evict(count=10) == []
    with pytest.raises(kv.errors.BusyError):
        trie.remove(below)
    trie.unlock(below)
    with pytest.raises(kv.errors.ArgumentError):
        trie.unlock(below)
    assert trie.remove(below) == 1
    assert len(trie) == 1


def test_a_handle_of_what_is_gone() -> None:
    trie = kv.trie.PrefixTrie()
    node = trie.insert([1, 2, 3])
    trie.remove(node)
    assert not node.alive
    assert repr(node) == "<kvtrie.TrieNode, gone>"
    for use in (lambda: node.end, lambda: node.tokens, lambda: trie.lock(node), lambda: trie.touch(node)):
        with pytest.raises(kv.errors.ClosedError):
            use()
    other = kv.trie.PrefixTrie().insert([1])
    with pytest.raises(kv.Error):  # its trie is gone, and it is not this one's
        trie.lock(other)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda t: t.insert([]), kv.errors.ArgumentError),
        (lambda t: t.insert([-1]), kv.errors.ArgumentError),
        (lambda t: t.insert([2**31]), kv.errors.ArgumentError),
        (lambda t: t.insert([1.0]), kv.errors.ArgumentTypeError),
        (lambda t: t.insert([1], nbytes=-1), kv.errors.ArgumentError),
        (lambda t: t.insert([1], nbytes="lots"), kv.errors.ArgumentError),
        (lambda t: t.insert([1], namespace=5), kv.errors.ArgumentTypeError),
        (lambda t: t.match("text"), kv.errors.ArgumentTypeError),
        (lambda t: t.lock(None), kv.errors.ArgumentTypeError),
        (lambda t: t.remove(5), kv.errors.ArgumentTypeError),
        (lambda t: t.evict(count=-1), kv.errors.ArgumentError),
        (lambda t: pickle.dumps(t), kv.errors.ArgumentTypeError),
    ],
)
def test_bad_input_changes_nothing(call: Any, error: type[Exception]) -> None:
    trie = kv.trie.PrefixTrie()
    trie.insert([1, 2], nbytes="1KiB")
    with pytest.raises(error, match="allowed"):
        call(trie)
    assert (len(trie), trie.nbytes, trie.check()) == (1, 1024, [])


def test_against_a_dictionary() -> None:
    """Random inserts, matches and evictions; a set of all known prefixes decides what is right."""
    random = np.random.default_rng(SEED)
    trie = kv.trie.PrefixTrie()
    known: dict[str, set[tuple[int, ...]]] = {"a": set(), "b": set()}
    for step in range(3000):
        namespace = "ab"[random.integers(2)]
        tokens = tuple(int(t) for t in random.integers(0, 3, random.integers(1, 12)))
        action = random.integers(10)
        if action < 5:
            trie.insert(tokens, int(random.integers(0, 100)), namespace)
            known[namespace].update(tokens[: i + 1] for i in range(len(tokens)))
        elif action < 9:
            expected = next((n for n in range(len(tokens), 0, -1) if tokens[:n] in known[namespace]), 0)
            assert trie.match(np.array(tokens), namespace)[0] == expected, (SEED, step)
        else:
            for gone in trie.evict(count=int(random.integers(1, 3))):
                path = tuple(int(t) for t in gone.tokens)
                known[gone.namespace] -= {path[:n] for n in range(gone.start + 1, len(path) + 1)}
        assert trie.token_count == sum(map(len, known.values())), (SEED, step)
        if step % 100 == 0:
            assert trie.check() == []
