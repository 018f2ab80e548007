// Scopes in which something of the tree stays: while a call makes room, and while it waits with the mutex free.
//
// Threads: made and ended with the prefix cache's mutex held.
#pragma once

#include <cstdint>
#include <utility>

#include "tiers/device_budget.h"
#include "tree/leases.h"

namespace kvtrie {

// Keeps the state that a path needs (Planner::use_of) from eviction, for a while.
class InUseScope {
 public:
  InUseScope(DeviceBudget& device_budget, InUse in_use) : device_budget_(device_budget) {
    device_budget_.keep(std::move(in_use));
  }
  ~InUseScope() { device_budget_.keep_nothing(); }
  InUseScope(const InUseScope&) = delete;
  InUseScope& operator=(const InUseScope&) = delete;

 private:
  DeviceBudget& device_budget_;
};

// Keeps a path locked while the mutex is free: a hold of the leases.
class PathHold {
 public:
  PathHold(Leases& leases, Node* node) : leases_(leases), hold_(leases_.hold(node)) {}
  ~PathHold() { leases_.let_go(hold_); }
  Node* node() const noexcept { return hold_->node; }
  bool lost() const noexcept { return hold_->lost; }  // some of it had to go all the same
  PathHold(const PathHold&) = delete;
  PathHold& operator=(const PathHold&) = delete;

 private:
  Leases& leases_;
  Leases::Hold hold_;
};

// While a call has bytes of the host tier that no node has, so that their count is not what nodes have. `calls`: how
// many do.
class StagedScope {
 public:
  explicit StagedScope(std::uint32_t& calls) : calls_(calls) { ++calls_; }
  ~StagedScope() { --calls_; }
  StagedScope(const StagedScope&) = delete;
  StagedScope& operator=(const StagedScope&) = delete;

 private:
  std::uint32_t& calls_;
};

}  // namespace kvtrie
