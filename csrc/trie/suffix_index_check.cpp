// SuffixIndex::check: recounts every list and chain, and compares places with the paths that they are on.
#include <algorithm>

#include "base/error.h"
#include "trie/suffix_index.h"
#include "trie/suffix_windows.h"

namespace kvtrie {

class SuffixIndexCheck {
 public:
  SuffixIndexCheck(const SuffixIndex& index, std::vector<std::string>& findings) : of_(index), findings_(findings) {}

  void run() {
    std::size_t blocks = 0, places = 0;
    for (std::uint32_t number = of_.all_.oldest; number != 0; number = of_.blocks_[number].of_all.newer) {
      if (++blocks > of_.all_.count) break;
      places += of_.blocks_[number].count;
      check_block(number);
    }
    expect(blocks == of_.all_.count, "list of ", blocks, " blocks, kept ", of_.all_.count);
    expect(places == of_.size_, "size: kept ", of_.size_, ", counted ", places);
    expect(blocks + free_blocks() + 1 == of_.blocks_.size(), "blocks are neither free nor used");
    expect(of_.blocks_.size() <= of_.capacity_ + 1, "more blocks than it may have");
    check_shelves(blocks);
    check_by_node(blocks);
    for (std::size_t level = 0; level < SuffixIndex::kLevels; ++level) check_chains(level);
  }

 private:
  template <class... Words>
  void expect(bool ok, const Words&... words) {
    if (!ok) findings_.push_back(cat("[SuffixIndex.check] ", words...));
  }

  void check_block(std::uint32_t number) {
    const SuffixIndex::Block& block = of_.blocks_[number];
    expect(block.node != nullptr && block.count > 0 && block.count <= SuffixIndex::kBlock, "block ", number, " of ",
           block.count, " places");
    if (block.node == nullptr) return;
    const Node* root = block.node;
    while (!root->is_root()) root = root->parent();
    expect(block.root == root, "block ", number, ": of another namespace");
    expect(block.from >= 0 && block.from + static_cast<std::int32_t>(block.count) <= block.node->end(), "block ",
           number, ": from ", block.from, ", behind the end of its path at ", block.node->end());
    expect(of_.shelves_.find(root) != of_.shelves_.end(), "block ", number, ": its namespace has none");
    for (std::size_t slot = 0; slot < SuffixIndex::kBlock; ++slot) check_slot(number, slot);
  }

  // In the chains that it should be in, and no other.
  void check_slot(std::uint32_t number, std::size_t slot) {
    const SuffixIndex::Block& block = of_.blocks_[number];
    const std::int32_t end = block.from + static_cast<std::int32_t>(slot) + 1;
    for (std::size_t level = 0; level < SuffixIndex::kLevels; ++level) {
      const bool listed = slot < block.count && static_cast<std::size_t>(end) >= SuffixIndex::kWindow[level];
      const SuffixIndex::Link& link = block.links[level][slot];
      expect((link.previous != 0) == listed, "place ", end, " of block ", number, ": listed ", link.previous != 0);
      wanted_[level] += listed ? 1 : 0;
    }
  }

  std::size_t free_blocks() const {
    std::size_t count = 0;
    for (std::uint32_t each = of_.free_; each != 0 && count <= of_.blocks_.size(); each = of_.blocks_[each].next)
      ++count;
    return count;
  }

  void check_shelves(std::size_t blocks) {
    std::size_t counted = 0;
    for (const auto& [root, shelf] : of_.shelves_) {
      std::size_t own = 0;
      std::uint32_t older = 0;
      for (std::uint32_t each = shelf.blocks.oldest; each != 0 && own <= blocks; ++own) {
        expect(of_.blocks_[each].root == root, "block ", each, ": on the list of another namespace");
        expect(of_.blocks_[each].of_shelf.older == older, "block ", each, ": its links disagree");
        older = each;
        each = of_.blocks_[each].of_shelf.newer;
      }
      expect(own > 0 && own == shelf.blocks.count, "namespace with ", own, " blocks, kept ", shelf.blocks.count);
      expect(older == shelf.blocks.newest, "the newest block of a namespace is not the end of its list");
      counted += own;
    }
    expect(counted == blocks, "namespaces have ", counted, " blocks of ", blocks);
  }

  void check_by_node(std::size_t blocks) {
    std::size_t counted = 0;
    for (std::size_t bucket = 0; bucket < of_.by_node_.size(); ++bucket) {
      std::uint32_t previous = 0;
      for (std::uint32_t each = of_.by_node_[bucket]; each != 0 && counted <= blocks; ++counted) {
        const SuffixIndex::Block& block = of_.blocks_[each];
        expect(block.node != nullptr && of_.node_bucket(block.node) == bucket, "block ", each, ": in another bucket");
        expect(block.previous == previous, "block ", each, ": its bucket's links disagree");
        previous = each;
        each = block.next;
      }
    }
    expect(counted == blocks, "buckets have ", counted, " blocks of ", blocks);
  }

  // Links point back at each other, and as many heads as there are first places point at one.
  void check_chains(std::size_t level) {
    tables_ = tables_of(level);
    std::size_t firsts = 0, listed = 0;
    for (std::uint32_t number = of_.all_.oldest; number != 0; number = of_.blocks_[number].of_all.newer) {
      for (std::uint32_t slot = 0; slot < of_.blocks_[number].count; ++slot) {
        const auto id = static_cast<SuffixIndex::Id>(number * SuffixIndex::kBlock + slot);
        const SuffixIndex::Link& link = of_.link(level, id);
        if (link.previous == 0) continue;
        ++listed;
        firsts += check_link(level, id, link) ? 1 : 0;
      }
    }
    const auto& heads = of_.heads_[level];
    std::size_t used = 0;
    for (std::size_t at = 0; at < heads.size(); ++at) used += heads[at] != 0 ? 1 : 0;
    expect(used == firsts, "chains of ", SuffixIndex::kWindow[level], ": ", used, " heads, ", firsts, " first places");
    expect(listed == wanted_[level], "chains of ", SuffixIndex::kWindow[level], ": ", listed, " places of ",
           wanted_[level]);
  }

  // Whether it is the first of its chain, which all places with the same window are in.
  bool check_link(std::size_t level, SuffixIndex::Id id, const SuffixIndex::Link& link) {
    const std::size_t head = head_of(level, id, tables_[id]);
    const bool first = (link.previous & SuffixIndex::kHead) != 0;
    const SuffixIndex::Id from =
        first ? of_.heads_[level][link.previous & ~SuffixIndex::kHead] : of_.link(level, link.previous).next;
    expect(from == id, "place ", id, ": what comes before it in its chain leads elsewhere");
    expect(first ? head == (link.previous & ~SuffixIndex::kHead) : head == head_of(level, link.previous, tables_[id]),
           "place ", id, ": in another chain");
    expect(link.next == 0 || of_.link(level, link.next).previous == id, "place ", id, ": its chain's links disagree");
    return first;
  }

  // Of each place, the table that its chain is in; 0: in none.
  std::vector<std::size_t> tables_of(std::size_t level) const {
    std::vector<std::size_t> tables(of_.blocks_.size() * SuffixIndex::kBlock);
    const ChainHeads& heads = of_.heads_[level];
    for (std::size_t at = 0, walked = 0; at < heads.size(); ++at) {
      for (SuffixIndex::Id id = heads[at]; id != 0 && walked <= of_.size_; id = of_.link(level, id).next, ++walked)
        tables[id] = heads.table_of(at);
    }
    return tables;
  }

  // In that table, by the tokens that are before it now.
  std::size_t head_of(std::size_t level, SuffixIndex::Id id, std::size_t table) const {
    const SuffixIndex::Block& block = of_.blocks_[id / SuffixIndex::kBlock];
    const auto shelf = of_.shelves_.find(block.root);
    if (block.node == nullptr || shelf == of_.shelves_.end()) return of_.heads_[level].size();
    const std::int32_t end = block.from + static_cast<std::int32_t>(id % SuffixIndex::kBlock) + 1;
    const SuffixIndex::Windows windows(block.node, end);
    const ChainHeads& heads = of_.heads_[level];
    return heads.begin_of(table) + place_of(mix(windows.hash(level) ^ shelf->second.salt), heads.size_of(table));
  }

  const SuffixIndex& of_;
  std::vector<std::string>& findings_;
  std::array<std::size_t, SuffixIndex::kLevels> wanted_{};
  std::vector<std::size_t> tables_;  // of the level that is looked at
};

void SuffixIndex::check(std::vector<std::string>& findings) const { SuffixIndexCheck(*this, findings).run(); }

}  // namespace kvtrie
