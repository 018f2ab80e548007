// What the prefix cache builds on: lending, borrowing, starting at a node, forks, nodes that come and go.
#pragma once

#include <cstddef>

#include "causal_captures.h"

namespace kvtrie::oracle {

class CausalLends : public CausalCaptures {
 public:
  using CausalCaptures::CausalCaptures;

 protected:
  void publish() {
    const SequenceId id = idle(true);
    if (id < 0) return;
    Twin& twin = *find(id);
    const std::int32_t begin = twin.borrowed, end = between(begin, twin.length());
    if (begin == end) return;
    if (cache_->is_private(id)) return expect_refused(ErrorKind::kNotSupported, [&] { cache_->lend(id, begin, end); });
    auto node = std::make_shared<Node>();
    node->cells = cache_->lend(id, begin, end);
    node->rows = slice(twin.rows, 0, end);
    node->begin = begin;
    expect(static_cast<std::int32_t>(node->cells.length()) == end - std::clamp(twin.held, begin, end), "what was lent");
    twin.path.push_back(node);
    twin.borrowed = end;
    nodes_.push_back(node);
    touched_.insert(id);
  }

  static bool same(const Row& a, const Row& b) { return a.history == b.history && a.shift == 0 && b.shift == 0; }

  // Any sequence whose rows are those of a node re-points to it; one that ends where the node begins goes on with it.
  void adopt() {
    const SequenceId id = idle(true);
    if (id < 0 || nodes_.empty()) return;
    Twin& twin = *find(id);
    const std::size_t first = below(static_cast<std::uint32_t>(nodes_.size()));
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const std::shared_ptr<Node>& node = nodes_[(first + i) % nodes_.size()];
      if (fits_on(twin, *node)) return borrow(id, twin, node, node->begin);
    }
  }

  bool fits_on(const Twin& twin, const Node& node) const {
    if (node.begin != twin.borrowed || twin.is_private) return false;
    if (!sight_.is_windowed() && node.cells.empty()) return false;
    for (std::int32_t i = std::max(0, node.begin - 1); i < std::min(twin.length(), node.end()); ++i) {
      if (!same(twin.rows[static_cast<std::size_t>(i)], node.rows[static_cast<std::size_t>(i)])) return false;
    }
    return true;
  }

  void borrow(SequenceId id, Twin& twin, const std::shared_ptr<Node>& node, std::int32_t from) {
    const std::int32_t end = node->end();
    const std::int32_t has_from = node->cells.empty() ? end : node->cells.begin_position();
    const std::int32_t has_to = node->cells.empty() ? from : node->cells.end_position();
    const auto call = [&] { cache_->borrow(id, node->cells, from, end); };
    if (twin.held < end) {  // what the sequence holds, the node must have
      if (has_from > std::max(from, twin.held) || has_to < end) return expect_refused(ErrorKind::kArgument, call);
      twin.held = twin.held <= from ? twin.held : std::max(from, has_from);
    }
    call();
    for (std::int32_t i = twin.length(); i < end; ++i) twin.rows.push_back(node->rows[static_cast<std::size_t>(i)]);
    twin.path.push_back(node);
    twin.borrowed = end;
    touched_.insert(id);
  }

  // A sequence goes on from a node without what comes before it.
  void start_at() {
    const SequenceId id = idle(true);
    if (id < 0 || nodes_.empty()) return;
    Twin& twin = *find(id);
    const std::shared_ptr<Node> node = nodes_[below(static_cast<std::uint32_t>(nodes_.size()))];
    if (node->cells.empty() || node->cells.end_position() != node->end()) return;
    const std::int32_t position = between(node->cells.begin_position(), node->end());
    if (!sight_.is_windowed() && position > 0) {
      return expect_refused(ErrorKind::kArgument, [&] { cache_->start_at(id, position); });
    }
    cache_->start_at(id, position);
    shorten(twin, 0);
    ++twin.epoch;
    twin.rows = slice(node->rows, 0, position);
    twin.held = twin.borrowed = position;
    if (below(4) != 0) borrow(id, twin, node, position);
    touched_.insert(id);
  }

  void fork() {
    const SequenceId from = idle(true);
    if (from < 0 || opened_.size() > 8) return;
    const Twin source = *find(from);
    const std::int32_t length = between(0, source.length());
    const SequenceId to = cache_->open_sequence();
    opened_.insert(to);
    Twin& twin = open(to);
    touched_.insert(to);
    const auto call = [&] { cache_->fork(from, to, length); };
    if (!resumable(source, length)) return expect_refused(ErrorKind::kNotRestorable, call);
    call();
    copy(source, twin, length);
    twin.borrowed = std::min(source.borrowed, length);
    for (const auto& node : source.path) {
      if (node->begin < length) twin.path.push_back(node);
    }
  }

  // A node goes to host memory, comes back, lets go of cells at one of its ends, or goes away. In a windowed cache
  // nothing, only one that nobody stands on.
  void page() {
    if (nodes_.empty()) return;
    const std::size_t at = below(static_cast<std::uint32_t>(nodes_.size()));
    const std::shared_ptr<Node> node = nodes_[at];
    const bool used = std::any_of(twins_.begin(), twins_.end(), [&](const auto& entry) {
      return std::count(entry.second.path.begin(), entry.second.path.end(), node) != 0;
    });
    if (used && !sight_.is_windowed()) return;
    if (below(3) == 0) {
      nodes_.erase(nodes_.begin() + static_cast<std::ptrdiff_t>(at));
      node->cells = {};
    } else if (node->cells.empty()) {
      page_in(*node);
    } else if (sight_.is_windowed() && below(2) == 0) {
      const std::int32_t position = between(node->begin, node->end());
      below(2) == 0 ? node->cells.drop_front(position) : node->cells.truncate(position);
    } else {
      page_out(*node);
    }
  }

  void page_out(Node& node) {
    const std::int32_t begin = node.image_begin = node.cells.begin_position();
    const std::int32_t end = node.image_end = node.cells.end_position();
    const auto length = static_cast<std::uint32_t>(end - begin);
    node.image.assign(shape_.bytes_per_cell() * length, std::byte{0});
    cache_->store_image(node.cells, begin, end, begin, node.image.data(), length)->wait();
    node.cells = {};
  }

  void page_in(Node& node) {
    const std::int32_t begin = node.image_begin, end = node.image_end;
    const auto length = static_cast<std::uint32_t>(end - begin);
    if (length > cache_->free_cells()) {
      return expect_refused(ErrorKind::kCacheFull, [&] { cache_->claim(length, begin); });
    }
    if (length == 0) return;
    node.cells = cache_->claim(length, begin);
    cache_->load_image(node.cells, begin, end, begin, node.image.data(), length)->wait();
    check_node(node);
  }
};

}  // namespace kvtrie::oracle
