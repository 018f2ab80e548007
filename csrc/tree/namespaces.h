// One record for each namespace: everything about it beside its nodes.
//
//     number    by which the caches know whose bytes a cell or slot has (cache/cell_owners.h)
//     budgets   that its bytes in host memory and in files are reserved in, where namespaces are counted (quotas.h)
//     writing   its bytes on their way to files
//
// The caches clear what changes hands when a step claims it; a page-in writes every byte of what it claims. Host memory
// is never cleared and needs not be: a blob's sections cover all of its bytes, an image writes all of them, and nothing
// is read of a blob before its bytes have arrived and were hashed (store/blob.h).
//
// A record stays while the namespace is in the tree or has bytes. One that has gone may get another number when it
// comes back: what it left is cleared then. No number is given twice.
//
// Cost: O(log n) in the records; those that may go are looked for, one by one, each time that as many have come as were
// left. Memory: at most 64 records, or twice as many as there were when they were last looked through. Errors: a call
// that throws, for lack of memory, has added nothing. Threads: guarded by the prefix cache's mutex; budgets count by
// themselves. Units: bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "cache/cell_owners.h"
#include "store/byte_budget.h"
#include "trie/trie.h"

namespace kvtrie {

struct Namespace {
  Owner number = 0;
  std::shared_ptr<ByteBudget> host, disk;  // null where nothing is counted, or there is no host tier
  std::uint64_t writing = 0;
  bool has_bytes() const noexcept {
    return writing > 0 || (host != nullptr && host->used() > 0) || (disk != nullptr && disk->used() > 0);
  }
};

class Namespaces {
 public:
  // `host` (may be null): the budget of the host tier. `counted`: each namespace gets budgets of its own. The trie
  // outlives this.
  Namespaces(const Trie& trie, std::shared_ptr<ByteBudget> host, bool counted)
      : trie_(trie), host_(std::move(host)), counted_(counted) {}
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  bool counted() const noexcept { return counted_; }
  const std::shared_ptr<ByteBudget>& host() const noexcept { return host_; }
  std::size_t size() const noexcept { return records_.size(); }

  Namespace& of(std::string_view name_space);  // stays where it is until another call of this
  Owner number_of(std::string_view name_space) { return of(name_space).number; }
  // Budgets that bytes of it are reserved in.
  const std::shared_ptr<ByteBudget>& host_of(std::string_view name_space);  // the host's own where nothing is counted
  std::shared_ptr<ByteBudget> disk_of(std::string_view name_space);         // null where nothing is counted
  // Bytes on their way to files; nothing where nothing is counted.
  void begin_writing(std::string_view name_space, std::uint64_t bytes);
  void end_writing(std::string_view name_space, std::uint64_t bytes) noexcept;

 private:
  static constexpr std::size_t kLeast = 64;

  const Trie& trie_;
  const std::shared_ptr<ByteBudget> host_;
  const bool counted_;
  std::map<std::string, Namespace, std::less<>> records_;
  Owner next_ = kFirstTenant;
  std::size_t prune_at_ = kLeast;
};

}  // namespace kvtrie
