// Names of values in a shared store: who may share, and which tokens.
//
// A key says everything that has to be equal for two processes to share a value: the model's fingerprint, the shape of
// every cache, the namespace, and all tokens from the beginning. It is a chain of SHA-256, one link for each block of
// kSharedBlock tokens, so that naming every place of a path costs as much as reading it once:
//
//     d0 = SHA-256("kvtrie.shared.scope.1", fingerprint, layout, namespace)     fields by length (base/digest.h)
//     d1 = SHA-256("kvtrie.shared.path.1", d0, tokens of block 1)
//     d2 = SHA-256("kvtrie.shared.path.1", d1, tokens of block 2)     ...
//     rest of 10 tokens behind it: SHA-256("kvtrie.shared.path.1", d2, those 10 tokens)
//
//     key = "kvtrie:1:" + letter + ":" + 64 hex digits
//
// Where the namespace has a key (key_ring.h), the digits are of HMAC-SHA256("kvtrie.seal.value.1", the digest): who
// lacks it cannot name a value, nor tell from a name whether it is of a prompt that he guesses.
//
// Tokens are named in their *shared form*: ids of media items are of one process (tree/media.h), so an item's
// position is written as what the id stands for. Four bytes for each text token, 36 for each position of an item; no
// symbol begins another, so equal bytes are equal tokens.
//
// Threads: pure. Units: tokens, bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "store/key_ring.h"
#include "store/snapshot_format.h"

namespace kvtrie {

inline constexpr std::size_t kSharedBlock = 256;  // tokens; part of every key: another size is another version
inline constexpr std::size_t kSharedTextBytes = 4, kSharedMediaBytes = 36;  // of one token in shared form

// The shared form of `tokens`; `media` is ascending by id. Throws kArgument for a negative token without an entry.
std::vector<std::byte> token_bytes(std::span<const std::int32_t> tokens, std::span<const SnapshotMedia> media);
// How many tokens these bytes are the shared form of; nothing: of none.
std::optional<std::size_t> count_tokens(std::span<const std::byte> bytes) noexcept;
// How many tokens two shared forms have in common at their beginning. REQUIRES: both are shared forms.
std::size_t common_tokens(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

// The identity of those who may share: compared in full when a snapshot comes back, and part of every key.
struct SharedScope {
  std::string fingerprint, name_space;
  std::vector<SnapshotCache> caches;
  KeyRingPtr keys = nullptr;  // with one for this namespace; null: nothing is sealed
};

enum class SharedKind : char {
  kBlock = 'b',  // cells of one whole block
  kTail = 't',   // cells behind the last whole block, and what a restore point needs
  kIndex = 'i',  // what is known to follow a block
  kChunk = 'c',  // a chunk of a large value
};
std::string shared_key(SharedKind kind, const Digest& digest);

// One path of tokens, named at every place.
class SharedPath {
 public:
  // Throws kArgument like token_bytes.
  SharedPath(SharedScope scope, std::span<const std::int32_t> tokens, std::span<const SnapshotMedia> media);

  const SharedScope& scope() const noexcept { return scope_; }
  const NamespaceKey* key() const noexcept { return key_ ? &*key_ : nullptr; }  // null: nothing is sealed
  std::size_t tokens() const noexcept { return ends_.size() - 1; }
  std::size_t blocks() const noexcept { return boundaries_.size() - 1; }  // whole ones
  bool has_media() const noexcept { return bytes_.size() != tokens() * kSharedTextBytes; }
  // The shared form of tokens [begin, end). REQUIRES: begin <= end <= tokens().
  std::span<const std::byte> bytes(std::size_t begin, std::size_t end) const;

  // REQUIRES: block <= blocks(); the key of what follows so many blocks.
  std::string index_key(std::size_t block) const;
  // The key of the cells of tokens [(block - 1) * kSharedBlock, block * kSharedBlock). REQUIRES: 1 <= block <=
  // blocks().
  std::string block_key(std::size_t block) const;
  // The key of what ends at `end`. REQUIRES: end <= tokens().
  std::string tail_key(std::size_t end) const;
  // The same two for other tokens behind the first `block` blocks, in shared form, kSharedBlock of them at most.
  std::string key_behind(SharedKind kind, std::size_t block, std::span<const std::byte> tokens) const;

 private:
  std::string named(SharedKind kind, const Digest& digest) const;

  SharedScope scope_;
  std::optional<NamespaceKey> key_;
  std::vector<std::byte> bytes_;
  std::vector<std::size_t> ends_;   // where token i begins in bytes_; one more than tokens
  std::vector<Digest> boundaries_;  // the digest of the first i blocks
};

}  // namespace kvtrie
