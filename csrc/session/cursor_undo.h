// Where a cursor stood, so that it stands there again when what moves it cannot be finished.
//
// Concept. Moving goes through several caches and the tree, and any of it may find no memory. So the sequences are
// forked first, which moves no byte, and the cursor goes on with the twins when what follows throws:
//
//     {
//       CursorUndo undo(tree, cursor);     may throw: nothing has changed
//       ... borrow, resume, move_to ...    may throw
//       undo.forget();
//     }                                    not forgotten: node, tail, length and sequences are those of before
//
// A cursor without computed tokens has nothing to be forked: its sequences are emptied.
//
// Threads: guarded by the prefix cache's mutex. REQUIRES: no open step, nothing ahead; what is done meanwhile moves the
// cursor along its tail, but does not change that.
#pragma once

#include <utility>
#include <vector>

#include "session/cursors.h"

namespace kvtrie {

class CursorUndo {
 public:
  CursorUndo(const CursorTree& of, Cursor& cursor)
      : of_(of), cursor_(cursor), node_(cursor.node), tail_begin_(cursor.tail_begin), computed_(cursor.computed) {
    if (computed_ > 0) fork();
    of_.trie.lock(node_);
  }
  ~CursorUndo() {
    if (!forgotten_) go_back();
    for (std::size_t i = 0; i < kept_.size(); ++i) of_.caches.all[i]->close_sequence(kept_[i]);
    of_.trie.unlock(node_);
    of_.removal.try_join(node_);
  }
  CursorUndo(const CursorUndo&) = delete;
  CursorUndo& operator=(const CursorUndo&) = delete;

  void forget() noexcept { forgotten_ = true; }

 private:
  void fork() {
    kept_.reserve(of_.caches.all.size());
    try {
      for (std::size_t i = 0; i < of_.caches.all.size(); ++i) {
        kept_.push_back(of_.caches.all[i]->open_sequence(cursor_.owner));
        of_.caches.all[i]->fork(cursor_.sequences[i], kept_[i], computed_);
      }
    } catch (...) {
      for (std::size_t i = 0; i < kept_.size(); ++i) of_.caches.all[i]->close_sequence(kept_[i]);
      throw;
    }
  }

  void go_back() noexcept {
    cursor_.tail_begin = tail_begin_;
    cursor_.computed = computed_;
    if (Node* reached = std::exchange(cursor_.node, node_); reached != node_) {
      of_.trie.lock(node_);
      of_.trie.unlock(reached);
      of_.removal.try_join(reached);
    }
    if (!kept_.empty()) return std::swap(cursor_.sequences, kept_);
    for (std::size_t i = 0; i < of_.caches.all.size(); ++i) of_.caches.all[i]->truncate(cursor_.sequences[i], 0);
  }

  const CursorTree& of_;
  Cursor& cursor_;
  Node* const node_;
  const std::size_t tail_begin_;
  const std::int32_t computed_;
  std::vector<SequenceId> kept_;
  bool forgotten_ = false;
};

}  // namespace kvtrie
