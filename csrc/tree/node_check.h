// The check of one node: what it holds covers its edge, in one tier, and is where the orders say.
//
// Threads: with the prefix cache's mutex held. Cost: O(what the node holds).
#pragma once

#include <string>
#include <vector>

#include "tree/cache_table.h"
#include "tree/node_state.h"
#include "tree/tree_orders.h"

namespace kvtrie {

void check_node(const CacheTable& caches, const TreeOrders& orders, const Node& node,
                std::vector<std::string>& findings);

}  // namespace kvtrie
