#include "trie/child_index.h"

#include <algorithm>
#include <utility>

#include "trie/node.h"
#include "trie/node_pool.h"

namespace kvtrie {
namespace {

constexpr std::size_t kSmallest = 32;  // entries

}  // namespace

std::uint32_t ChildIndex::hash(const Node* parent, Token token) const noexcept {
  // The finaliser of SplitMix64 over both fields of the key.
  std::uint64_t x = pool_.number_of(parent) ^ (std::uint64_t{static_cast<std::uint32_t>(token)} << 32);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return static_cast<std::uint32_t>(x ^ (x >> 31));
}

std::size_t ChildIndex::locate(const Node* parent, Token token) const noexcept {
  if (entries_.empty()) return kNone;
  const std::size_t mask = entries_.size() - 1;
  const std::uint32_t wanted = hash(parent, token);
  for (std::size_t i = wanted & mask; entries_[i].child != 0; i = (i + 1) & mask) {
    if (entries_[i].hash != wanted) continue;
    const Node* child = pool_.node_at(entries_[i].child);
    if (child->parent_ == parent && child->edge_.front() == token) return i;
  }
  return kNone;
}

Node* ChildIndex::find(const Node* parent, Token token) const noexcept {
  const std::size_t at = locate(parent, token);
  return at == kNone ? nullptr : pool_.node_at(entries_[at].child);
}

void ChildIndex::reserve(std::size_t more) {
  const std::size_t wanted = size_ + more;
  if (wanted * 4 <= entries_.size() * 3) return;
  std::size_t count = std::max(kSmallest, entries_.size());
  while (wanted * 4 > count * 3) count *= 2;
  std::vector<Entry> old(count);
  std::swap(old, entries_);
  for (const Entry& entry : old) {
    if (entry.child != 0) place(entry);
  }
}

void ChildIndex::place(Entry entry) noexcept {
  const std::size_t mask = entries_.size() - 1;
  std::size_t i = entry.hash & mask;
  while (entries_[i].child != 0) i = (i + 1) & mask;
  entries_[i] = entry;
}

void ChildIndex::insert(Node* child) noexcept {
  place({pool_.number_of(child), hash(child->parent_, child->edge_.front())});
  ++size_;
}

void ChildIndex::replace(const Node* parent, Token token, Node* by) noexcept {
  entries_[locate(parent, token)].child = pool_.number_of(by);
}

void ChildIndex::erase(const Node* parent, Token token) noexcept {
  const std::size_t mask = entries_.size() - 1;
  std::size_t hole = locate(parent, token);
  for (std::size_t i = (hole + 1) & mask; entries_[i].child != 0; i = (i + 1) & mask) {
    const std::size_t home = entries_[i].hash & mask;
    // Entry i may fill the hole when its home does not lie cyclically in (hole, i].
    if (((i - home) & mask) >= ((i - hole) & mask)) {
      entries_[hole] = entries_[i];
      hole = i;
    }
  }
  entries_[hole] = Entry{};
  if (--size_ == 0) std::vector<Entry>().swap(entries_);
}

}  // namespace kvtrie
