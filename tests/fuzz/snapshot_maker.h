// Headers of snapshots made from bytes: every one that the rules allow can come out, small ones as a rule.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "base/cell_format.h"
#include "fuzz_bytes.h"
#include "store/snapshot_format.h"

namespace kvtrie::fuzz {

class SnapshotMaker {
 public:
  explicit SnapshotMaker(Bytes& from) : from_(from) {}

  SnapshotHeader make() {
    header_ = {};
    header_.fingerprint = from_.text(from_.below(20));
    header_.name_space = from_.text(from_.below(20));
    header_.point = static_cast<std::uint8_t>(from_.below(5));
    make_media();
    make_tokens();
    header_.start = static_cast<std::int32_t>(from_.below(header_.tokens.size()));
    make_caches();
    make_images();
    return header_;
  }

 private:
  using Kind = SnapshotCache::Kind;
  using Role = SnapshotImage::Role;

  void make_media() {
    std::map<std::int32_t, SnapshotMedia> by_id;
    for (std::size_t left = from_.below(4); left > 0; --left) {
      SnapshotMedia item;
      item.id = -1 - static_cast<std::int32_t>(from_.number<std::uint32_t>() >> 1);
      item.group = from_.flag();
      item.count = 1 + static_cast<std::int32_t>(from_.below(item.group ? 5 : 1 << 24));
      item.digest = item.group ? std::string(static_cast<std::size_t>(item.count) * 4, '\x05') : from_.text(9) + "d";
      by_id[item.id] = item;
    }
    for (const auto& [id, item] : by_id) header_.media.push_back(item);
  }

  void make_tokens() {
    for (const SnapshotMedia& item : header_.media) header_.tokens.push_back(item.id);
    for (std::size_t left = from_.below(40) + (header_.media.empty() ? 1 : 0); left > 0; --left) {
      const auto token = static_cast<std::int32_t>(from_.number<std::uint32_t>() >> 1);
      const auto at = static_cast<std::ptrdiff_t>(from_.below(header_.tokens.size() + 1));
      header_.tokens.insert(header_.tokens.begin() + at, token);
    }
  }

  void make_caches() {
    for (std::size_t left = from_.below(4); left > 0; --left) make_cache(Kind::kAttention);
    for (std::size_t left = from_.below(3); left > 0; --left)
      make_cache(from_.pick({Kind::kRecurrent, Kind::kOthers, static_cast<Kind>(255)}));
  }

  void make_cache(Kind kind) {
    SnapshotCache cache{kind, static_cast<std::uint8_t>(from_.below(cell_formats().size())), {}};
    for (std::size_t left = from_.below(6); left > 0; --left)
      cache.shape.push_back(cache.shape.empty() ? static_cast<std::int64_t>(from_.below(4097))
                                                : from_.number<std::int64_t>());
    header_.caches.push_back(std::move(cache));
  }

  void make_images() {
    for (const Role role : {Role::kCells, Role::kWindow, Role::kState}) {
      for (std::uint32_t cache = 0; cache < header_.caches.size(); ++cache) {
        if ((role == Role::kState) != (header_.caches[cache].kind == Kind::kAttention)) make_images_of(role, cache);
      }
    }
  }

  // Without an overlap, in order.
  void make_images_of(Role role, std::uint32_t cache) {
    const auto end = static_cast<std::int32_t>(header_.tokens.size());
    if (role == Role::kState) {
      if (from_.flag()) header_.images.push_back({role, cache, 0, 0, sections()});
      return;
    }
    std::int32_t at = role == Role::kCells ? header_.start : 0;
    while (at < end && from_.flag()) {
      at += static_cast<std::int32_t>(from_.below(static_cast<std::size_t>(end - at)));
      const auto cells = 1 + static_cast<std::uint32_t>(from_.below(static_cast<std::size_t>(end - at)));
      header_.images.push_back({role, cache, at, cells, sections()});
      at += static_cast<std::int32_t>(cells);
    }
  }

  std::vector<SnapshotSection> sections() {
    std::vector<SnapshotSection> made(1 + from_.below(3));
    for (SnapshotSection& section : made)
      section = {from_.number<std::uint64_t>() >> (8 + from_.below(56)), from_.number<std::uint64_t>()};
    return made;
  }

  Bytes& from_;
  SnapshotHeader header_;
};

}  // namespace kvtrie::fuzz
