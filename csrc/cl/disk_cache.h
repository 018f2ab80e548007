// Private to cl/: small files that save work, addressed by a full key. A lost or damaged file costs time, nothing else.
//
// Concept. One file holds one (key, value); its name is a checksum of the key, and the key in it must equal the wanted
// one. Files are written under a temporary name and renamed. Nothing here throws for a bad file or folder: it is logged
// and the entry counts as absent. The folder must be ours alone to write (compiled programs in it are run): it is made
// with mode 0700, and one that others may write is refused.
//
//     file:  "kvtrie-cache 1\n"  u64 key bytes  u64 value bytes  u64 checksum of key and value  key  value
//
// Threads: every method may be called from any thread and any process.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvtrie::cl {

class DiskCache {
 public:
  explicit DiskCache(const std::string& folder);  // empty: everything is absent, nothing is kept

  bool enabled() const noexcept { return !folder_.empty(); }
  std::optional<std::vector<std::byte>> load(std::string_view key) const noexcept;
  void store(std::string_view key, std::span<const std::byte> value) const noexcept;
  std::string path_of(std::string_view key) const;

 private:
  std::string folder_;
};

// Joins fields into a key that no other list of fields gives: each with its length before it.
std::string key_of(std::initializer_list<std::string_view> fields);

}  // namespace kvtrie::cl
