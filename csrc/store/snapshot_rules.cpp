#include "store/snapshot_rules.h"

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "base/cell_format.h"
#include "base/error.h"
#include "base/little_endian.h"

namespace kvtrie {
namespace {

using Kind = SnapshotCache::Kind;
using Role = SnapshotImage::Role;
using Caps = SnapshotCaps;

std::int64_t shown(std::uint64_t value) noexcept {
  return static_cast<std::int64_t>(std::min<std::uint64_t>(value, std::numeric_limits<std::int64_t>::max()));
}

BrokenRule wrong(const char* list, std::size_t index, const char* member, std::int64_t got, const char* allowed) {
  return {SnapshotFault::kSize, list, static_cast<std::int64_t>(index), member, got, allowed};
}

// A code that this version does not know.
BrokenRule unknown(const char* list, std::size_t index, const char* member, std::int64_t got, const char* allowed) {
  return {SnapshotFault::kLayout, list, static_cast<std::int64_t>(index), member, got, allowed};
}

// A group is kept by its tokens, which hold no ids of this process.
bool is_group_digest(const SnapshotMedia& item) {
  if (item.digest.size() != std::uint64_t{4} * static_cast<std::uint32_t>(item.count)) return false;
  const auto* bytes = reinterpret_cast<const std::byte*>(item.digest.data());
  for (std::size_t i = 0; i < item.digest.size(); i += 4) {
    if (load_little_endian<std::int32_t>(bytes + i) < 0) return false;
  }
  return true;
}

BrokenRule broken_media(const std::vector<SnapshotMedia>& media) {
  for (std::size_t i = 0; i < media.size(); ++i) {
    const SnapshotMedia& item = media[i];
    if (item.id >= 0 || (i > 0 && item.id <= media[i - 1].id)) {
      return wrong("media", i, ".id", item.id, "negative numbers, ascending");
    }
    if (item.count < 1 || static_cast<std::uint64_t>(item.count) > Caps::kTokens) {
      return wrong("media", i, ".count", item.count, "1 to 2^24");
    }
    if (item.group && !is_group_digest(item)) {
      return wrong("media", i, ".digest", shown(item.digest.size()),
                   "the bytes of `count` tokens that are not negative");
    }
    if (!item.group && (item.digest.empty() || item.digest.size() > Caps::kDigestBytes)) {
      return wrong("media", i, ".digest", shown(item.digest.size()), "1 to 2^16 bytes");
    }
  }
  return {};
}

// Each negative token has an entry, each entry a token. REQUIRES: the entries are in order.
BrokenRule broken_tokens(const SnapshotHeader& header) {
  const std::vector<SnapshotMedia>& media = header.media;
  std::vector<bool> used(media.size());
  for (std::size_t i = 0; i < header.tokens.size(); ++i) {
    const std::int32_t token = header.tokens[i];
    if (token >= 0 || (i > 0 && token == header.tokens[i - 1])) continue;
    const auto found = std::lower_bound(media.begin(), media.end(), token,
                                        [](const SnapshotMedia& item, std::int32_t id) { return item.id < id; });
    if (found == media.end() || found->id != token) return wrong("tokens", i, "", token, "ids of `media`");
    used[static_cast<std::size_t>(found - media.begin())] = true;
  }
  const auto unused = static_cast<std::size_t>(std::find(used.begin(), used.end(), false) - used.begin());
  if (unused < used.size()) return wrong("media", unused, ".id", media[unused].id, "ids among the tokens");
  return {};
}

const char* known_formats() {
  static const std::string codes = cat("0 to ", cell_formats().size() - 1, ", or of two");
  return codes.c_str();
}

BrokenRule broken_cache(const std::vector<SnapshotCache>& caches, std::size_t i) {
  const SnapshotCache& cache = caches[i];
  if (cache.kind != Kind::kAttention && cache.kind != Kind::kRecurrent && cache.kind < Kind::kOthers) {
    return unknown("caches", i, ".kind", static_cast<std::int64_t>(cache.kind), "1, 2, or 128 and more");
  }
  if (!cell_formats_of(cache.dtype)) return unknown("caches", i, ".dtype", cache.dtype, known_formats());
  if (i > 0 && cache.kind == Kind::kAttention && caches[i - 1].kind != Kind::kAttention) {
    return wrong("caches", i, ".kind", static_cast<std::int64_t>(cache.kind), "attention caches first");
  }
  const std::int64_t layers = cache.shape.empty() ? 0 : cache.shape.front();
  if (layers < 0 || layers > static_cast<std::int64_t>(Caps::kLayers)) {
    return wrong("caches", i, ".shape[0]", layers, "0 to 4096 layers");
  }
  if (cache.shape.size() > Caps::kShapeNumbers + static_cast<std::uint64_t>(layers)) {
    return wrong("caches", i, ".shape", shown(cache.shape.size()), "64 numbers and one for each layer");
  }
  return {};
}

// REQUIRES: the role is known and `image.cache` exists.
BrokenRule broken_range(const SnapshotHeader& header, std::size_t i) {
  const SnapshotImage& image = header.images[i];
  if (image.role == Role::kState) {
    if (image.first != 0) return wrong("images", i, ".first", image.first, "0 for a state");
    if (image.cells != 0) return wrong("images", i, ".cells", image.cells, "0 for a state");
    return {};
  }
  if (image.first < (image.role == Role::kCells ? header.start : 0)) {
    return wrong("images", i, ".first", image.first, "0 or more; for cells, `start` or more");
  }
  const std::uint64_t end = static_cast<std::uint64_t>(image.first) + image.cells;
  if (image.cells < 1 || end > header.tokens.size()) {
    return wrong("images", i, ".cells", image.cells, "1 to as many as there are tokens from `first` on");
  }
  return {};
}

// In order by (role, cache, first), and no position twice in one role and cache.
bool follows(const SnapshotImage& image, const SnapshotImage& before) {
  const auto place = [](const SnapshotImage& of) { return std::tuple(of.role, of.cache); };
  if (place(image) != place(before)) return place(before) < place(image);
  return image.first > before.first &&
         static_cast<std::uint64_t>(before.first) + before.cells <= static_cast<std::uint64_t>(image.first);
}

BrokenRule broken_image(const SnapshotHeader& header, std::size_t i) {
  const SnapshotImage& image = header.images[i];
  if (image.role != Role::kCells && image.role != Role::kWindow && image.role != Role::kState) {
    return unknown("images", i, ".role", static_cast<std::int64_t>(image.role), "1 to 3");
  }
  if (image.cache >= header.caches.size()) return wrong("images", i, ".cache", image.cache, "numbers of caches");
  const bool attention = header.caches[image.cache].kind == Kind::kAttention;
  if (attention == (image.role == Role::kState)) {
    return wrong("images", i, ".cache", image.cache, "attention caches for cells, the other ones for states");
  }
  if (const BrokenRule broken = broken_range(header, i)) return broken;
  if (i > 0 && !follows(image, header.images[i - 1])) {
    return wrong("images", i, ".first", image.first, "images in order of role, cache and position, without overlap");
  }
  if (image.sections.empty() || image.sections.size() > Caps::kSections) {
    return wrong("images", i, ".sections", shown(image.sections.size()), "1 to 2^22");
  }
  return {};
}

BrokenRule broken_images(const SnapshotHeader& header) {
  std::uint64_t together = 0;
  for (std::size_t i = 0; i < header.images.size(); ++i) {
    if (const BrokenRule broken = broken_image(header, i)) return broken;
    const std::uint64_t bytes = header.images[i].bytes();
    if (__builtin_add_overflow(together, bytes, &together) || together > Caps::kImageBytes) {
      return wrong("images", i, ".sections", shown(bytes), "2^62 bytes in all images");
    }
  }
  return {};
}

}  // namespace

BrokenRule broken_count(const HeaderCounts& counts) noexcept {
  const auto check = [](const char* list, std::uint64_t got, std::uint64_t cap, const char* allowed) -> BrokenRule {
    if (got <= cap) return {};
    return {SnapshotFault::kSize, list, -1, "", shown(got), allowed};
  };
  if (counts.tokens == 0) return {SnapshotFault::kSize, "tokens", -1, "", 0, "1 to 2^24"};
  for (const BrokenRule& broken : {check("fingerprint", counts.fingerprint, Caps::kNameBytes, "0 to 4096 bytes"),
                                   check("namespace", counts.name_space, Caps::kNameBytes, "0 to 4096 bytes"),
                                   check("tokens", counts.tokens, Caps::kTokens, "1 to 2^24"),
                                   check("media", counts.media, Caps::kMedia, "0 to 2^16"),
                                   check("caches", counts.caches, Caps::kCaches, "0 to 256"),
                                   check("images", counts.images, Caps::kImages, "0 to 4096")}) {
    if (broken) return broken;
  }
  return {};
}

BrokenRule broken_rule(const SnapshotHeader& header) {
  const HeaderCounts counts{header.fingerprint.size(), header.name_space.size(), header.tokens.size(),
                            header.media.size(),       header.caches.size(),     header.images.size()};
  if (const BrokenRule broken = broken_count(counts)) return broken;
  if (header.start < 0 || header.start >= shown(header.tokens.size())) {
    return {SnapshotFault::kSize, "start", -1, "", header.start, "0 to less than there are tokens"};
  }
  if (header.point > Caps::kPoint) return {SnapshotFault::kLayout, "point", -1, "", header.point, "0 to 4"};
  if (const BrokenRule broken = broken_media(header.media)) return broken;
  if (const BrokenRule broken = broken_tokens(header)) return broken;
  for (std::size_t i = 0; i < header.caches.size(); ++i) {
    if (const BrokenRule broken = broken_cache(header.caches, i)) return broken;
  }
  return broken_images(header);
}

}  // namespace kvtrie
