// A number for each namespace, by which the caches know whose bytes a cell or slot has (cache/cell_owners.h).
//
// The caches clear what changes hands when a step claims it; a page-in writes every byte of what it claims. Host memory
// is never cleared and needs not be: a blob's sections cover all of its bytes, an image writes all of them, and nothing
// is read of a blob before its bytes have arrived and were hashed (store/blob.h).
//
// A namespace keeps its number as long as it is in the tree. One that has gone from it may get another number when it
// comes back: what it left is cleared then. No number is given twice.
//
// Cost: O(log n) in the namespaces that have a number; those without a root are looked for, one by one, each time that
// as many have come as were left. Memory: at most 64 numbers, or twice as many as the tree had namespaces when they
// were last looked through. Errors: a call that throws, for lack of memory, has given no number. Threads: guarded by
// the prefix cache's mutex.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "cache/cell_owners.h"
#include "trie/trie.h"

namespace kvtrie {

class Tenants {
 public:
  explicit Tenants(const Trie& trie) : trie_(trie) {}  // which outlives this
  Tenants(const Tenants&) = delete;
  Tenants& operator=(const Tenants&) = delete;

  Owner of(std::string_view name_space);
  std::size_t size() const noexcept { return numbers_.size(); }  // that have one

 private:
  static constexpr std::size_t kLeast = 64;

  const Trie& trie_;
  std::map<std::string, Owner, std::less<>> numbers_;
  Owner next_ = kFirstTenant;
  std::size_t prune_at_ = kLeast;
};

}  // namespace kvtrie
