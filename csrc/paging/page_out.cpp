#include "paging/page_out.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "tree/node_state.h"

namespace kvtrie {
namespace {

void require_freeable(std::uint64_t nbytes, std::uint64_t freeable, std::string_view where) {
  if (nbytes <= freeable) return;
  CacheFullCounts counts;
  counts.needed = nbytes;
  counts.freeable = freeable;
  throw Error::cache_full(
      cat("[", where, "] nbytes: got ", nbytes, ", allowed ", freeable, " (what no live session or pin holds)"),
      counts);
}

// There are no victims left though enough was counted: others have taken or let go of some in between.
void require_interrupted(const Pieces& pieces, std::string_view where) {
  ensure(pieces.any_ended(), where, "counted more freeable bytes than there are");
}

}  // namespace

std::vector<Node*> children_first(Node* top) {
  std::vector<Node*> nodes{top};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (Node* child = nodes[i]->first_child(); child != nullptr; child = child->next_sibling()) nodes.push_back(child);
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

// Bytes that could be freed on the device and, with `outside`, off it, counted no further than `enough`. Of restore
// points that takes looking at every node: not where the full attention alone is enough.
std::uint64_t PageOut::freeable(std::uint64_t enough, bool outside, Pieces& pieces) {
  if (!caches_.has_points())
    return device_budget_.freeable_bytes() + (outside ? device_budget_.freeable_outside_bytes() : 0);
  const std::uint64_t least = device_budget_.freeable_tokens() * caches_.bytes_per_token();
  if (least >= enough) return least;
  std::uint64_t bytes = 0;
  for (const bool off_device : {false, true}) {
    if (off_device && !outside) break;
    for (NodeWalk walk; !walk.over && bytes < enough;) {
      bytes += device_budget_.freeable_bytes_of_some(walk, pieces.most(), off_device);
      pieces.end();
    }
  }
  return bytes;
}

// The tail of a victim that is worth `bytes`, counted in tokens of full attention.
Node* PageOut::tail_worth(Node* victim, std::uint64_t bytes) {
  const std::uint64_t each = std::max<std::uint64_t>(1, caches_.bytes_per_token());
  const std::uint64_t tokens = (bytes + each - 1) / each;
  const std::uint32_t length = state_of(victim).length();
  return eviction_.split_tail(victim, static_cast<std::uint32_t>(std::min<std::uint64_t>(tokens, length)));
}

std::uint64_t PageOut::page_out(std::uint64_t nbytes, std::uint64_t most, const std::function<void(Node*)>& leaving,
                                Call& call) {
  Pieces pieces(call);
  require_freeable(nbytes, std::min(most, freeable(nbytes, /*outside=*/false, pieces)), "page_out");
  std::uint64_t freed = 0;
  while (freed < nbytes) {
    Node* victim = eviction_.next_victim();
    if (victim == nullptr) {
      require_interrupted(pieces, "page_out");
      break;
    }
    Node* tail = tail_worth(victim, nbytes - freed);
    leaving(tail);
    const std::uint64_t bytes = eviction_.evict(tail);
    freed += bytes;
    if (freed < nbytes) pieces.add(bytes);
  }
  return freed;
}

std::uint64_t PageOut::page_out(Node* top) {
  std::uint64_t freed = 0;
  for (Node* node : children_first(top)) {
    if (!state_of(node).on_device()) continue;
    const std::uint64_t bytes = eviction_.page_out(node);
    if (bytes == 0) break;
    freed += bytes;
  }
  return freed;
}

std::uint64_t PageOut::evict(std::uint64_t nbytes, Call& call) {
  Pieces pieces(call);
  require_freeable(nbytes, freeable(nbytes, /*outside=*/true, pieces), "evict");
  std::uint64_t freed = 0;
  while (freed < nbytes) {
    Node* victim = eviction_.next_victim();
    if (victim == nullptr) victim = eviction_.outside_victim();
    if (victim == nullptr) {
      require_interrupted(pieces, "evict");
      break;
    }
    freed += removal_.remove_subtree(tail_worth(victim, nbytes - freed));
    if (freed < nbytes) pieces.add();
  }
  return freed;
}

}  // namespace kvtrie
