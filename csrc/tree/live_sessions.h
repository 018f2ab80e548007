// The cursors of a prefix cache that are open, one of each session, and what of theirs the tree has to know.
//
// A cursor that stands at a node's end between two steps has state there that is as good as a restore point's. While
// some sequences hold the same cells that no node has yet (a fork of tokens that there was no memory to publish),
// evicting a node may free less than its length: that lasts until each of them has published them or is closed.
//
// Of several that would do, the one that was opened first is taken, so that the same calls have the same outcome.
//
// Threads: guarded by the prefix cache's mutex. Cost: O(log n) to add and remove, O(n) to search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

#include "tree/cursor.h"
#include "trie/trie.h"

namespace kvtrie {

class LiveSessions {
 public:
  void add(Cursor* cursor) {
    cursor->number = ++last_number_;
    sessions_.insert(cursor);
  }
  void remove(Cursor* cursor) noexcept { sessions_.erase(cursor); }

  bool empty() const noexcept { return sessions_.empty(); }
  std::size_t size() const noexcept { return sessions_.size(); }
  auto begin() const noexcept { return sessions_.begin(); }
  auto end() const noexcept { return sessions_.end(); }

  // One whose state at the node's end may be shared: between two steps, sound, and of what is published. Null: none.
  Cursor* standing_at(const Node* node) const;
  bool any_failed() const;

  // Where each stands, and what it is on its way to (borrowed ahead).
  template <class Each>
  void visit_nodes(const Each& each) const {
    for (const Cursor* cursor : sessions_) {
      each(cursor->node);
      if (cursor->ahead != nullptr) each(cursor->ahead);
    }
  }

  bool tails_are_shared() const;

 private:
  struct OpenedBefore {
    bool operator()(const Cursor* a, const Cursor* b) const noexcept { return a->number < b->number; }
  };
  std::set<Cursor*, OpenedBefore> sessions_;
  std::uint64_t last_number_ = 0;
};

}  // namespace kvtrie
