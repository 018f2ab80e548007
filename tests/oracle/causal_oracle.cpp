// Random operations on CausalCache over the host store against naive histories. Freed cells hold NaN. After each
// operation: check(), every length, the contents of every sequence that changed, and now and then of everything.
//
//   causal_oracle [--seed N] [--operations N]
//
// The seed is printed and replays the run. Exits with 1 at the first difference.
#include <algorithm>
#include <array>
#include <cstddef>
#include <iostream>

#include "causal_edits.h"

namespace kvtrie::oracle {
namespace {

class Driver : public CausalEdits {
 public:
  using CausalEdits::CausalEdits;

  struct Operation {
    std::uint32_t weight;
    void (Driver::*run)();
  };

  void step() {
    touched_.clear();
    static constexpr std::array<Operation, 21> kOperations{
        {{220, &Driver::start},      {90, &Driver::begin}, {240, &Driver::put},          {25, &Driver::drop},
         {40, &Driver::copy_prefix}, {40, &Driver::cut},   {45, &Driver::remove_middle}, {30, &Driver::take_snapshot},
         {35, &Driver::restore},     {15, &Driver::split}, {15, &Driver::merge},         {20, &Driver::forget_snapshot},
         {15, &Driver::schedule},    {20, &Driver::drain}, {15, &Driver::defrag},        {60, &Driver::publish},
         {40, &Driver::adopt},       {35, &Driver::fork},  {30, &Driver::page},          {30, &Driver::refuse},
         {40, &Driver::attend_again}}};
    std::uint32_t total = 0;
    for (const Operation& operation : kOperations) total += operation.weight;
    std::uint32_t choice = below(total);
    const Operation* chosen = kOperations.data();
    for (; choice >= chosen->weight; ++chosen) choice -= chosen->weight;
    (this->*chosen->run)();
    compare();
  }

 private:
  // ---- lending and borrowing --------------------------------------------------------------------------------------

  void publish() {
    const SequenceId id = idle(true);
    if (id < 0) return;
    Twin& twin = *find(id);
    const std::int32_t begin = twin.borrowed(), end = between(begin, twin.length());
    if (begin == end) return;
    if (cache_->is_private(id)) return expect_refused(ErrorKind::kNotSupported, [&] { cache_->lend(id, begin, end); });
    auto node = std::make_shared<Node>();
    node->cells = cache_->lend(id, begin, end);
    node->rows = slice(twin.rows, begin, end);
    node->begin = begin;
    twin.path.push_back(node);
    nodes_.push_back(node);
    touched_.insert(id);
  }

  // Any sequence whose rows are those of a node re-points to it; one that ends where the node begins goes on with it.
  void adopt() {
    const SequenceId id = idle(true);
    if (id < 0 || nodes_.empty()) return;
    Twin& twin = *find(id);
    const std::int32_t begin = twin.borrowed();
    for (const auto& node : nodes_) {
      if (node->cells.empty() || node->begin != begin) continue;
      const auto length = static_cast<std::int32_t>(node->rows.size());
      const std::int32_t known = std::min(twin.length() - begin, length);
      if (begin > 0 && (twin.path.back()->rows.back().history != parent_of(*node) || twin.is_private)) continue;
      bool same = true;
      for (std::int32_t i = 0; i < known; ++i) {
        const Row& own = twin.rows[static_cast<std::size_t>(begin + i)];
        same = same && own.history == node->rows[static_cast<std::size_t>(i)].history && own.shift == 0;
      }
      if (!same || (known < length && twin.length() > begin && known == 0)) continue;
      cache_->borrow(id, node->cells, begin, begin + length);
      twin.path.push_back(node);
      for (std::int32_t i = known; i < length; ++i) twin.rows.push_back(node->rows[static_cast<std::size_t>(i)]);
      touched_.insert(id);
      return;
    }
  }
  // Nodes are told apart by contents, so the parent is whoever has the right last row; unknown nodes match nobody.
  std::uint64_t parent_of(const Node& node) const {
    for (const auto& [id, twin] : twins_) {
      for (std::size_t i = 1; i < twin.path.size(); ++i) {
        if (twin.path[i].get() == &node) return twin.path[i - 1]->rows.back().history;
      }
    }
    return 0;
  }

  void fork() {
    const SequenceId from = idle(true);
    if (from < 0 || opened_.size() > 8) return;
    const Twin source = *find(from);
    const std::int32_t length = between(0, source.length());
    if (cuts_a_node(source, length)) return;
    const SequenceId to = cache_->open_sequence();
    cache_->fork(from, to, length);
    opened_.insert(to);
    Twin& twin = open(to);
    twin.rows = slice(source.rows, 0, length);
    twin.is_private = source.is_private && length > 0;
    for (const auto& node : source.path) {
      if (node->begin < length) twin.path.push_back(node);
    }
    touched_.insert(to);
  }

  // A node nobody stands on goes to host memory, comes back, or goes away.
  void page() {
    if (nodes_.empty()) return;
    const std::size_t at = below(static_cast<std::uint32_t>(nodes_.size()));
    const std::shared_ptr<Node> node = nodes_[at];
    const bool used = std::any_of(twins_.begin(), twins_.end(), [&](const auto& entry) {
      return std::count(entry.second.path.begin(), entry.second.path.end(), node) != 0;
    });
    if (used) return;
    const auto length = static_cast<std::uint32_t>(node->rows.size());
    const std::int32_t end = node->begin + static_cast<std::int32_t>(length);
    if (below(3) == 0) {
      nodes_.erase(nodes_.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (!node->cells.empty()) {
      node->image.assign(shape_.bytes_per_cell() * length, std::byte{0});
      cache_->store_image(node->cells, node->begin, end, node->begin, node->image.data(), length)->wait();
      node->cells = {};
    } else if (length <= cache_->free_cells()) {
      node->cells = cache_->claim(length, node->begin);
      cache_->load_image(node->cells, node->begin, end, node->begin, node->image.data(), length)->wait();
      check_rows(node->cells.spans(), node->rows, "a node that came back");
    } else {
      expect_refused(ErrorKind::kCacheFull, [&] { cache_->claim(length, node->begin); });
    }
  }

  void refuse() {
    const SequenceId id = user_number();
    const std::int32_t length = cache_->length(id);
    const auto bad = [&](auto call) { expect_refused(ErrorKind::kArgument, call); };
    const std::vector<std::int32_t> gap{length + 1};
    const std::vector<SequenceId> ids{id};
    switch (below(6)) {
      case 0:
        return bad([&] { cache_->start_forward(gap, ids); });
      case 1:
        return bad([&] { cache_->remove(id, length + 1); });
      case 2:
        return bad([&] { cache_->copy_prefix(99, id, 0); });
      case 3:
        return bad([&] { cache_->snapshot(id, -1); });
      case 4:
        return bad([&] { cache_->prepare_snapshots(id, {length - 1}); });
      default:
        return bad([&] { cache_->remove(id, 0, length + 1); });
    }
  }
};

int run(std::uint64_t seed, std::uint64_t operations) {
  static constexpr std::array<Cell, 6> kSizes{1, 9, 24, 48, 96, 160};
  static constexpr std::array<std::uint32_t, 3> kGrowth{0, 3, 16};
  static constexpr std::uint64_t kRound = 2500;
  std::cout << "causal_oracle: seed " << seed << ", operations " << operations << '\n';
  std::uint64_t done = 0;
  for (std::uint64_t round = 0; done < operations; ++round) {
    Driver driver(seed + round, kSizes[round % kSizes.size()], kGrowth[round % kGrowth.size()]);
    for (std::uint64_t i = 0; i < kRound && done < operations; ++i, ++done) {
      try {
        driver.step();
      } catch (const std::exception& error) {
        std::cout << "operation " << done << " (round " << round << ", step " << i << "): " << error.what() << '\n';
        return 1;
      }
    }
  }
  std::cout << "causal_oracle: " << done << " operations agree\n";
  return 0;
}

}  // namespace
}  // namespace kvtrie::oracle

int main(int argc, char** argv) {
  std::uint64_t seed = 20252, operations = 100000;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--seed") seed = std::stoull(argv[i + 1]);
    if (name == "--operations") operations = std::stoull(argv[i + 1]);
  }
  return kvtrie::oracle::run(seed, operations);
}
