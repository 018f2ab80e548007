// The trie alone: a set of token sequences with byte counts, for use without caches or a device.
//
// Concept. `insert` records a sequence; sequences with a common beginning share it. A byte count belongs to the tokens
// of a node's edge, evenly: cutting a node divides its bytes pro rata, so that the halves always add up. The least
// recently used leaf goes first, tail first, and takes no more tokens than the bytes that were asked for.
//
// Shape. A node stays while it has two children, is the end of an inserted sequence, or is locked; any other inner node
// is joined with its only child; without memory for that, by the next call that inserts or evicts. Every node is a
// member of the one victim order.
//
// Handles. A `Handle` names a node without keeping it: once the node is gone (evicted, removed, or joined into its
// child), or the trie itself, using the handle throws kClosed. It is safe to keep for as long as one likes.
//
// Threads: none of its own; the owner serialises. Units: offsets and lengths in tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trie/trie.h"

namespace kvtrie {

class PrefixTrie {
 public:
  // State that a node and its handles share: the node, null once it is gone.
  struct Anchor {
    Node* node = nullptr;
    const PrefixTrie* owner = nullptr;
  };

  class Handle {
   public:
    Handle() = default;  // of no node: what match() gives when nothing matched

    explicit operator bool() const noexcept { return anchor_ != nullptr; }
    bool alive() const noexcept { return anchor_ != nullptr && anchor_->node != nullptr; }
    bool operator==(const Handle&) const = default;

    // Each throws kClosed when the node is gone.
    std::int32_t start() const;
    std::int32_t end() const;
    std::uint64_t nbytes() const;  // of the edge [start, end)
    std::uint32_t locks() const;
    std::size_t child_count() const;
    std::uint64_t last_used() const;
    bool is_end() const;  // an inserted sequence ends here
    const std::string& name_space() const;
    Tokens tokens() const;  // the whole path, `end()` of them

   private:
    friend class PrefixTrie;
    explicit Handle(std::shared_ptr<Anchor> anchor) noexcept : anchor_(std::move(anchor)) {}
    Node& node(std::string_view where) const;

    std::shared_ptr<Anchor> anchor_;
  };

  struct Found {
    std::int32_t length = 0;  // tokens matched
    Handle node;              // the deepest node reached; of no node when length is 0
  };

  // An evicted span: the tokens from `start` on of the path `tokens`, and their bytes.
  struct Evicted {
    std::string name_space;
    Tokens tokens;
    std::int32_t start = 0;
    std::uint64_t nbytes = 0;
  };

  PrefixTrie() = default;

  // Records `tokens`; the result names the node at whose end they end, which is now the latest used. `nbytes` belongs
  // to the tokens that were not known yet; when all were known and it is not 0, it replaces the count of that node.
  // Throws kArgument for no tokens.
  Handle insert(std::span<const Token> tokens, std::uint64_t nbytes, std::string_view name_space);
  // Longest known prefix; not a use.
  Found match(std::span<const Token> tokens, std::string_view name_space) const;

  // A locked node and all above it are not evicted. Each lock needs one unlock; the last one counts as a use.
  void lock(const Handle& node);
  void unlock(const Handle& node);  // throws kArgument when there is no lock
  void touch(const Handle& node);   // the latest use, now

  // Evicts least recently used leaves until `nbytes` are free or `count` leaves have gone, whichever is first; of the
  // last leaf only the tail that is needed for `nbytes`. Neither given: one leaf. Stops early when all that is left is
  // locked or above a lock.
  std::vector<Evicted> evict(std::optional<std::uint64_t> nbytes, std::optional<std::size_t> count);
  // Removes a leaf and returns its bytes. Throws kArgument for a node with children, kBusy for a locked one.
  std::uint64_t remove(const Handle& node);

  std::size_t size() const noexcept { return trie_.size(); }                  // nodes
  std::uint64_t token_count() const noexcept { return trie_.token_count(); }  // on all edges
  std::uint64_t nbytes() const noexcept { return nbytes_; }                   // of all nodes
  const Trie& trie() const noexcept { return trie_; }
  std::vector<std::string> check() const;  // empty when every invariant holds

 private:
  Handle handle(Node* node) const;
  Node& owned(const Handle& handle, std::string_view where) const;
  void grow(Node* node, std::span<const Token> tail, std::uint64_t nbytes);
  Node* add_end(Node* parent, std::span<const Token> tail, std::uint64_t nbytes);
  void compress(Node* node) noexcept;
  void compress_what_is_left();
  Evicted take_leaf(Node* leaf, std::int32_t kept);

  Trie trie_{1};
  std::uint64_t nbytes_ = 0;
  bool unjoined_ = false;  // there may be two nodes in place of one, for want of memory
};

}  // namespace kvtrie
