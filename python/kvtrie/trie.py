"""The prefix trie by itself, and what names tokens outside of it.

    PrefixTrie     sequences of tokens with byte counts; its nodes are ``TrieNode``, what it evicted ``Evicted``
    fingerprints   hashes of a prompt's prefixes, by which routers compare what replicas know
    TokenTexts     what each token spells, by which ``PrefixCache`` finds a text that it knows in other tokens

Units: offsets and lengths in tokens. Threads: a ``PrefixTrie`` has none of its own, its owner keeps calls apart; the
other two may be used from any thread.
"""

from __future__ import annotations

from ._core import Evicted, PrefixTrie, TokenTexts, TrieNode, fingerprints

__all__ = ["Evicted", "PrefixTrie", "TokenTexts", "TrieNode", "fingerprints"]
