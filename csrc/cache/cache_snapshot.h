// A snapshot as every cache gives it out: the state of one sequence for the positions [start, end), detached from that
// sequence. Destroying it lets go of it. Consumed by split and merge; then, or when its cache is gone, it holds and
// counts nothing.
//
// The contents are the cache's own, in its inside header; cache_snapshot_contents.h lists their requirements.
//
// Threads: any. Units: positions, bytes.
#pragma once

#include <cstdint>
#include <memory>

namespace kvtrie {

template <class Cache, class ContentsOfCache>
class CacheSnapshot {
 public:
  using Contents = ContentsOfCache;  // private to the cache
  explicit CacheSnapshot(std::unique_ptr<Contents> contents);
  ~CacheSnapshot();

  std::int32_t start() const noexcept;
  std::int32_t end() const noexcept;
  std::uint64_t nbytes() const;         // of what it alone holds
  std::uint64_t shared_nbytes() const;  // of what others hold too
  const char* tier() const noexcept { return "device"; }
  bool consumed() const noexcept;
  Contents& contents() const noexcept { return *contents_; }  // for the cache

 private:
  std::unique_ptr<Contents> contents_;
};

}  // namespace kvtrie
