// Cursors move through the tree: opened, published, placed on a path, gone back, closed.
//
// Concept. This class is the only one that changes where a conversation stands (cursor.h), and the only one that makes
// nodes of what was computed.
//
//     publish   computed tokens become nodes: cursors.cpp
//               what the tree knows already is walked down: the cursor re-points to the node's cells, and its own go
//               back; a node in a lower tier takes the cursor's cells and is on the device again at no cost. What it
//               does not know becomes a node, or grows the last one, where nobody else stands there.
//     adopt     a known path becomes the cursor's: cursors_adopt.cpp
//               sequences borrow the cells of full attention and what the next query sees of windows, states resume
//               from a restore point. Where attention caches reach further than states can be restored, they go ahead.
//     go_back   the same upwards: what the caches hold themselves stays theirs, else as `adopt`
//
// Nodes that a cursor comes down to were asked for once more (demand.h).
//
// No K/V moves in any of it. REQUIRES, where a target is given: every cache can go on there (planner.h).
//
// Invariants: those of Cursor. Errors: no memory; the cursor then stands where it stood (cursor_undo.h), and what was
// to be published is still its own: the next `publish` has it, too. Cost: O(nodes of the path), and O(windows'
// holders). Threads: guarded by the prefix cache's mutex. Units: tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/planner.h"
#include "session/checkpointer.h"
#include "tiers/lower_tiers.h"
#include "tree/cache_table.h"
#include "tree/cursor.h"
#include "tree/demand.h"
#include "tree/live_sessions.h"
#include "tree/node_places.h"
#include "tree/removal.h"
#include "tree/restore_points.h"
#include "trie/trie.h"

namespace kvtrie {

// The collaborators of the cursors. All outlive the Cursors.
struct CursorTree {
  const CacheTable& caches;
  Trie& trie;
  NodePlaces& places;
  RestorePoints& points;
  const LowerTiers& lower;
  const Planner& planner;
  Demand& demand;
  Checkpointer& checkpointer;
  Removal& removal;
  LiveSessions& sessions;
  const NodeCosts& costs;  // of new nodes
  const double& now;       // seconds
};

class Cursors {
 public:
  explicit Cursors(const CursorTree& of) : of_(of) {}
  Cursors(const Cursors&) = delete;
  Cursors& operator=(const Cursors&) = delete;

  void open(Cursor& cursor, std::string_view name_space, Owner owner);  // at the root
  void branch(Cursor& from, Cursor& twin);  // to where `from` stands. REQUIRES: opened; no open step
  void close(Cursor& cursor) noexcept;      // it gives back what it holds
  // Its node is gone: it stands on nothing and holds nothing, and still knows its tokens. REQUIRES: no open step
  void lose(Cursor& cursor);

  void move_to(Cursor& cursor, Node* node) noexcept;  // changes the lock; tidies up where it stood
  void publish(Cursor& cursor);                       // everything computed and not yet published

  // --- cursors_adopt.cpp
  // Whether something is worth writing behind from now on (demand.h).
  bool adopt(Cursor& cursor, const Path& path, std::int32_t target);
  std::vector<Node*> cut_at(const Path& path, std::int32_t target);  // its nodes, one of which ends there now
  // The deepest length <= `length` to which the cursor can go back; `length` itself exactly when it can.
  std::int32_t reachable_back(const Cursor& cursor, std::int32_t length) const;
  void go_back(Cursor& cursor, std::int32_t length);  // REQUIRES: reachable_back(length) == length < computed
  void drop_ahead(Cursor& cursor) noexcept;
  void check(std::vector<std::string>& findings) const;  // all that are open: cursors_check.cpp
  void settle_ahead(Cursor& cursor);  // nothing is ahead once all attention caches have come to its own length

 private:
  void check(const Cursor& cursor, std::vector<std::string>& findings) const;
  void share_cells(Cursor& cursor, Node* node);
  void take_known(Cursor& cursor, const Path& path);
  void grow_last(Cursor& cursor, std::span<const Token> edge);
  void add_node(Cursor& cursor, std::span<const Token> edge);
  void add_fresh(Cursor& cursor, std::span<const Token> edge);
  bool grows_last(const Cursor& cursor) const;
  void join_up_from(Node* node) noexcept;
  void lend_or_borrow(Cursor& cursor, std::size_t cache, NodeState& node);
  void borrow_full(Cursor& cursor, const Node* node);
  void stand_on_window(Cursor& cursor, std::size_t cache, std::span<Node* const> nodes, std::int32_t target);
  void stand_at(Cursor& cursor, std::span<Node* const> nodes, std::int32_t target, std::int32_t matched);
  void take_back(Cursor& cursor, std::size_t cache, std::span<Node* const> nodes, const Node* kept,
                 std::int32_t length);
  void borrow_ahead(Cursor& cursor, const Path& path);
  SequenceId state_sequence(const Cursor& cursor, std::size_t state) const {
    return of_.caches.states_among(cursor.sequences)[state];
  }

  const CursorTree of_;
};

}  // namespace kvtrie
