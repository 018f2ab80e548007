#include "trie/suffix_index.h"

#include <algorithm>
#include <new>

#include "base/error.h"
#include "trie/suffix_windows.h"

namespace kvtrie {

SuffixIndex::SuffixIndex(std::size_t places)
    : capacity_((places + kBlock - 1) / kBlock),
      blocks_(capacity_ + 1),
      heads_{ChainHeads(capacity_ * kBlock), ChainHeads(capacity_ * kBlock)} {
  require(places >= 1 && places <= kMost, "SuffixIndex", "places: got ", places, ", allowed 1 to ", kMost);
  blocks_.add();
  by_node_.resize(capacity_);
}

SuffixIndex::~SuffixIndex() = default;

std::size_t SuffixIndex::bytes() const noexcept {
  std::size_t heads = 0;
  for (const ChainHeads& each : heads_) heads += each.size();
  return blocks_.bytes() + by_node_.capacity() * sizeof(std::uint32_t) + heads * sizeof(Id);
}

// Makes one block more; false: it may have no more, or there is no memory. A head for each place that blocks may have.
bool SuffixIndex::grows() noexcept {
  if (blocks_.size() > capacity_) return false;
  try {
    for (ChainHeads& each : heads_)
      if (each.size() < blocks_.size() * kBlock) each.grow();
    blocks_.add();
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

// ---- lists of blocks ----------------------------------------------------------------------------------------------

void SuffixIndex::append_to(AgeList& list, Ages Block::*ages, std::uint32_t number) noexcept {
  blocks_[number].*ages = {list.newest, 0};
  (list.newest == 0 ? list.oldest : (blocks_[list.newest].*ages).newer) = number;
  list.newest = number;
  ++list.count;
}

void SuffixIndex::prepend_to(AgeList& list, Ages Block::*ages, std::uint32_t number) noexcept {
  blocks_[number].*ages = {0, list.oldest};
  (list.oldest == 0 ? list.newest : (blocks_[list.oldest].*ages).older) = number;
  list.oldest = number;
  ++list.count;
}

void SuffixIndex::remove_from(AgeList& list, Ages Block::*ages, std::uint32_t number) noexcept {
  const Ages own = blocks_[number].*ages;
  (own.older == 0 ? list.oldest : (blocks_[own.older].*ages).newer) = own.newer;
  (own.newer == 0 ? list.newest : (blocks_[own.newer].*ages).older) = own.older;
  --list.count;
}

std::size_t SuffixIndex::node_bucket(const Node* node) const noexcept {
  return place_of(mix(reinterpret_cast<std::uintptr_t>(node)), by_node_.size());
}

void SuffixIndex::list_by_node(std::uint32_t number) noexcept {
  std::uint32_t& first = first_of(blocks_[number].node);
  blocks_[number].next = first;
  blocks_[number].previous = 0;
  if (first != 0) blocks_[first].previous = number;
  first = number;
}

void SuffixIndex::unlist_by_node(std::uint32_t number) noexcept {
  const Block& block = blocks_[number];
  (block.previous == 0 ? first_of(block.node) : blocks_[block.previous].next) = block.next;
  if (block.next != 0) blocks_[block.next].previous = block.previous;
}

void SuffixIndex::move_to(std::uint32_t number, Node* node) noexcept {
  unlist_by_node(number);
  blocks_[number].node = node;
  list_by_node(number);
}

// The block that ends there with places to spare, if it is one of the latest.
std::uint32_t SuffixIndex::tail_of(const Node* node, std::int32_t end) const noexcept {
  constexpr int kTried = 4;
  int tried = 0;
  for (std::uint32_t each = by_node_[node_bucket(node)]; each != 0 && tried < kTried; each = blocks_[each].next) {
    const Block& block = blocks_[each];
    if (block.node != node) continue;
    if (block.count < kBlock && block.from + static_cast<std::int32_t>(block.count) == end) return each;
    ++tried;
  }
  return 0;
}

// ---- tokens come --------------------------------------------------------------------------------------------------

// The oldest block of another namespace that has more than an even share, of the first that are looked at; 0: of none.
std::uint32_t SuffixIndex::oldest_of_a_large_one(const Node* root) const noexcept {
  std::size_t looked = 0;
  for (const auto& [other, shelf] : shelves_) {
    if (other != root && shelf.blocks.count * shelves_.size() > capacity_) return shelf.blocks.oldest;
    if (++looked == kCompared) break;
  }
  return 0;
}

// Makes one free where none is: of the namespace that has more than an even share, else of whom it may be. For what is
// to be the oldest only others give theirs that have more than their share; 0: there is none.
std::uint32_t SuffixIndex::take_free(const Node* root, const Shelf& shelf, End end) noexcept {
  if (free_ == 0 && grows()) return static_cast<std::uint32_t>(blocks_.size() - 1);
  if (free_ == 0) {
    const bool own = shelf.blocks.count > 0 && shelf.blocks.count * shelves_.size() >= capacity_;
    std::uint32_t oldest = own ? shelf.blocks.oldest : all_.oldest;
    if (end == End::kOldest) oldest = own ? 0 : oldest_of_a_large_one(root);
    if (oldest == 0) return 0;
    blocks_[oldest].root == root ? drop(oldest) : drop_and_tidy(oldest);
  }
  const std::uint32_t number = free_;
  free_ = blocks_[number].next;
  return number;
}

std::uint32_t SuffixIndex::open_block(Node* node, Node* root, Shelf& shelf, std::int32_t from, End end) {
  const std::uint32_t number = take_free(root, shelf, end);
  if (number == 0) return 0;
  Block& block = blocks_[number];
  block.node = node;
  block.root = root;
  block.from = from;
  block.count = 0;
  list_by_node(number);
  const auto list = end == End::kNewest ? &SuffixIndex::append_to : &SuffixIndex::prepend_to;
  (this->*list)(all_, &Block::of_all, number);
  (this->*list)(shelf.blocks, &Block::of_shelf, number);
  return number;
}

void SuffixIndex::add_place(Block& block, Id id, const Windows& windows, std::uint64_t salt) noexcept {
  for (std::size_t level = 0; level < kLevels; ++level) {
    if (!windows.full(level)) continue;
    ChainHeads& heads = heads_[level];
    const std::size_t last = heads.tables() - 1;
    const std::size_t at = heads.begin_of(last) + place_of(mix(windows.hash(level) ^ salt), heads.size_of(last));
    Id& head = heads[at];
    block.links[level][id % kBlock] = {head, kHead | static_cast<Id>(at)};
    if (head != 0) link(level, head).previous = id;
    head = id;
  }
  ++block.count;
  ++size_;
}

void SuffixIndex::grew(Node* node, std::int32_t from) noexcept { add(node, from, node->end(), End::kNewest); }

bool SuffixIndex::reads(Node* node, std::int32_t from, std::int32_t to) noexcept {
  return add(node, from, to, End::kOldest);
}

bool SuffixIndex::add(Node* node, std::int32_t from, std::int32_t to, End end) noexcept {
  if (from >= to) return true;
  Node* root = node;
  while (!root->is_root()) root = root->parent();
  Shelf* shelf = nullptr;
  try {
    const auto [entry, fresh] = shelves_.try_emplace(root);
    shelf = &entry->second;
    if (fresh) shelf->salt = mix(++shelves_made_);
  } catch (const std::bad_alloc&) {
    return true;
  }
  Windows windows(node, from);
  std::uint32_t number = tail_of(node, from);
  for (std::int32_t at = from; at < to; ++at) {
    windows.feed(node->tokens()[static_cast<std::size_t>(at - node->start())]);
    if (number == 0 || blocks_[number].count == kBlock) number = open_block(node, root, *shelf, at, end);
    if (number == 0) break;
    Block& block = blocks_[number];
    add_place(block, static_cast<Id>(number * kBlock + block.count), windows, shelf->salt);
  }
  if (shelf->blocks.count == 0) shelves_.erase(root);
  return number != 0;
}

// ---- tokens go ----------------------------------------------------------------------------------------------------

void SuffixIndex::unlink(std::size_t level, Id id) noexcept {
  Link& own = link(level, id);
  if (own.previous == 0) return;
  const bool first = (own.previous & kHead) != 0;
  (first ? heads_[level][own.previous & ~kHead] : link(level, own.previous).next) = own.next;
  if (own.next != 0) link(level, own.next).previous = own.previous;
  own = {};
}

// The first `count` places stay. REQUIRES: that is one, and fewer than it has.
void SuffixIndex::trim(std::uint32_t number, std::uint32_t count) noexcept {
  Block& block = blocks_[number];
  for (std::uint32_t slot = count; slot < block.count; ++slot) {
    for (std::size_t level = 0; level < kLevels; ++level) unlink(level, static_cast<Id>(number * kBlock + slot));
  }
  size_ -= block.count - count;
  block.count = count;
}

void SuffixIndex::drop(std::uint32_t number) noexcept {
  trim(number, 0);
  unlist_by_node(number);
  Block& block = blocks_[number];
  remove_from(all_, &Block::of_all, number);
  remove_from(shelves_.find(block.root)->second.blocks, &Block::of_shelf, number);
  block.node = nullptr;
  block.next = free_;
  free_ = number;
}

void SuffixIndex::drop_and_tidy(std::uint32_t number) noexcept {
  const auto shelf = shelves_.find(blocks_[number].root);
  drop(number);
  if (shelf->second.blocks.count == 0) shelves_.erase(shelf);
}

void SuffixIndex::joins(Node* upper, Node* child) noexcept {
  for (std::uint32_t each = first_of(upper), next = 0; each != 0; each = next) {
    next = blocks_[each].next;
    if (blocks_[each].node == upper) move_to(each, child);
  }
}

void SuffixIndex::goes(Node* leaf) noexcept {
  for (std::uint32_t each = first_of(leaf), next = 0; each != 0; each = next) {
    Block& block = blocks_[each];
    next = block.next;
    if (block.node != leaf) continue;
    const std::int32_t above = leaf->start() - block.from;
    if (above <= 0) {
      drop_and_tidy(each);
      continue;
    }
    if (static_cast<std::uint32_t>(above) < block.count) trim(each, static_cast<std::uint32_t>(above));
    move_to(each, leaf->parent());
  }
}

// ---- what follows -------------------------------------------------------------------------------------------------

void SuffixIndex::visit(const std::function<void(const Node&, std::int32_t)>& each) const {
  for (std::uint32_t number = all_.oldest; number != 0; number = blocks_[number].of_all.newer) {
    const Block& block = blocks_[number];
    for (std::uint32_t slot = 0; slot < block.count; ++slot)
      each(*block.node, block.from + static_cast<std::int32_t>(slot) + 1);
  }
}

}  // namespace kvtrie
