// Walks over the nodes of a prefix cache's tree, for tests that look at all of them.
#pragma once

#include <vector>

#include "tree/node_state.h"
#include "trie/trie.h"

namespace kvtrie {

struct TreeWalks {
  static std::vector<Node*> subtree(Node* top) {  // parents before their children
    std::vector<Node*> nodes{top};
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (Node* child = nodes[i]->first_child(); child != nullptr; child = child->next_sibling())
        nodes.push_back(child);
    }
    return nodes;
  }
  static std::vector<Node*> nodes_of(const Trie& trie) {  // without roots
    std::vector<Node*> all;
    trie.visit([&](Node& node) {
      if (!node.is_root()) all.push_back(&node);
    });
    return all;
  }
  static std::vector<BlobPtr> blobs_of(const Node* node) {
    std::vector<BlobPtr> blobs;
    state_of(node).visit_blobs([&](const BlobPtr& blob) { blobs.push_back(blob); });
    return blobs;
  }
};

}  // namespace kvtrie
