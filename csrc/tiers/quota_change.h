// Quotas of namespaces that are set and taken off at run time (tree/quotas.h).
//
// All or nothing: a quota is put in place for a try, what would have to stay is counted, and refused before anything
// goes; then the namespace's idle state beyond it goes at once, and that of others where a floor lacks room.
//
// Errors: kNotSupported where namespaces are not counted; kArgument for a floor above the most, or floors beyond a pool
// or tier; kCacheFull for live state and pins that would have to go. Threads: guarded by the prefix cache's mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "tiers/capacity.h"
#include "tiers/device_budget.h"
#include "tiers/lower_tiers.h"
#include "tree/cache_table.h"
#include "tree/caps.h"
#include "tree/leases.h"
#include "tree/node_places.h"
#include "tree/quotas.h"
#include "tree/restore_points.h"
#include "trie/trie.h"

namespace kvtrie {

// The owners that count by namespace or make room. All outlive the QuotaChange.
struct QuotaTree {
  const CacheTable& caches;
  Trie& trie;
  NodePlaces& places;
  RestorePoints& points;
  Leases& leases;
  Quotas& quotas;
  const std::shared_ptr<ByteBudget>& host;
  LowerTiers& lower;
  DeviceBudget& device_budget;
  Capacity& capacity;
};

class QuotaChange {
 public:
  explicit QuotaChange(const QuotaTree& of) : of_(of) {}
  QuotaChange(const QuotaChange&) = delete;
  QuotaChange& operator=(const QuotaChange&) = delete;

  void require_counted(const char* where) const;
  // False: what has to go from the lower tiers is on its way between them, so nothing has changed. `at_rest`: nothing
  // is on its way.
  bool set(std::string_view name_space, const Limits& most, const Limits& least, bool at_rest);
  void remove(std::string_view name_space);  // nothing when it has none

 private:
  class Tried;
  void require_possible(const Caps& most, const Caps& least, Group group) const;
  void require_lower_tiers(const Quotas::Quota& quota, Group group) const;
  bool shrinks(Group group) const;
  void move_group(Node* root, Group to);
  void change(std::string_view name_space, const Caps& most, const Caps& least);

  const QuotaTree of_;
};

}  // namespace kvtrie
