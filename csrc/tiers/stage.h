// The bytes that one page-in needs, gathered in host memory and verified: what a device may load.
//
// Of a blob in memory a stage refers to the memory itself. Of one in a file it has the wanted sections, read one behind
// the other, which make an image of their own: sections are contiguous and know nothing of their neighbours.
//
//     blob, in a file    [ s0 ][ s1 ][ s2 ][ s3 ]     wanted: tokens in s1 and s2
//     stage, in memory         [ s1 ][ s2 ]           first = blob's first + 64, cells = those of s1 and s2
//
// Threads: made, sized and asked under the prefix cache's mutex; `fill` under none. Units: bytes, positions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tree/node_state.h"

namespace kvtrie {

struct Fetch;
struct CacheTable;

struct Stage {
  BlobPtr blob;
  std::vector<std::uint32_t> sections;  // ascending
  std::int32_t first = 0;               // position of the first token in `memory`
  std::uint32_t cells = 0;              // tokens in `memory`
  HostMemoryPtr memory;                 // null: to be read from the file
  bool from_file = false;

  std::uint64_t bytes() const;  // of the sections
  bool covers(const BlobPtr& other, const std::vector<std::uint32_t>& wanted) const;
};

class Stages {
 public:
  Stages() = default;
  // The bytes that `fetch` needs up to `target`.
  Stages(const CacheTable& caches, const Fetch& fetch, std::int32_t target);

  std::uint64_t file_bytes() const;                          // to be allocated
  bool allocate(const std::shared_ptr<ByteBudget>& budget);  // false: did not fit
  bool fill();                                               // reads and verifies; false: some bytes are not right
  bool cover(const Stages& other) const;                     // all that `other` needs is here
  const Stage& of(const BlobSlice& slice, const KvShape& shape) const;  // REQUIRES: covered
  const Stage& of(const BlobPtr& state) const;
  void add(const BlobSlice& slice, const KvShape& shape);
  void add_state(const BlobPtr& blob);

 private:
  const Stage* find(const BlobPtr& blob, const std::vector<std::uint32_t>& sections) const;

  std::vector<Stage> stages_;
};

}  // namespace kvtrie
