#include "store/shared_keys.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/little_endian.h"

namespace kvtrie {
namespace {

constexpr std::string_view kScopeDomain = "kvtrie.shared.scope.1", kPathDomain = "kvtrie.shared.path.1",
                           kMediaDomain = "kvtrie.shared.media.1", kLayoutDomain = "kvtrie.shared.layout.1",
                           kSealedNameDomain = "kvtrie.seal.value.1";
constexpr std::uint32_t kMediaMarker = 0xFFFFFFFF;  // -1, which is no token

template <std::integral T>
void append_integer(std::vector<std::byte>& out, T value) {
  std::array<std::byte, sizeof(T)> bytes;
  store_little_endian(value, bytes.data());
  out.insert(out.end(), bytes.begin(), bytes.end());
}

bool is_media(std::span<const std::byte> bytes, std::size_t at) noexcept {
  return (bytes[at + 3] & std::byte{0x80}) != std::byte{0};
}

Digest name_of(const SnapshotMedia& item) {
  std::vector<std::byte> numbers;
  append_integer(numbers, item.count);
  append_integer(numbers, static_cast<std::uint8_t>(item.group));
  return Sha256(kMediaDomain).field(item.digest).field(std::span<const std::byte>(numbers)).finish();
}

Digest name_of(std::span<const SnapshotCache> caches) {
  Sha256 hash(kLayoutDomain);
  std::vector<std::byte> bytes;
  for (const SnapshotCache& cache : caches) {
    bytes.clear();
    append_integer(bytes, static_cast<std::uint8_t>(cache.kind));
    append_integer(bytes, cache.dtype);
    for (const std::int64_t number : cache.shape) append_integer(bytes, number);
    hash.field(std::span<const std::byte>(bytes));
  }
  return hash.finish();
}

Digest name_of(const SharedScope& scope) {
  const Digest layout = name_of(scope.caches);
  return Sha256(kScopeDomain)
      .field(scope.fingerprint)
      .field(std::span<const std::byte>(layout))
      .field(scope.name_space)
      .finish();
}

Digest extend(const Digest& digest, std::span<const std::byte> tokens) {
  return Sha256(kPathDomain).field(std::span<const std::byte>(digest)).field(tokens).finish();
}

// Writes the symbols of tokens, and looks up each media item once.
class TokenWriter {
 public:
  explicit TokenWriter(std::span<const SnapshotMedia> media) : media_(media), names_(media.size()) {}

  void append(std::int32_t token, std::vector<std::byte>& out) {
    if (token >= 0) return append_integer(out, static_cast<std::uint32_t>(token));
    append_integer(out, kMediaMarker);
    const Digest& name = media_name(token);
    out.insert(out.end(), name.begin(), name.end());
  }

 private:
  const Digest& media_name(std::int32_t id) {
    const auto found =
        std::lower_bound(media_.begin(), media_.end(), id,
                         [](const SnapshotMedia& item, std::int32_t wanted) { return item.id < wanted; });
    require(found != media_.end() && found->id == id, "shared store", "tokens: got ", id,
            ", allowed 0 or more, or the id of a media item");
    std::optional<Digest>& name = names_[static_cast<std::size_t>(found - media_.begin())];
    if (!name) name = name_of(*found);
    return *name;
  }

  std::span<const SnapshotMedia> media_;
  std::vector<std::optional<Digest>> names_;
};

std::size_t bytes_of_next(std::span<const std::byte> bytes, std::size_t at) noexcept {
  return is_media(bytes, at) ? kSharedMediaBytes : kSharedTextBytes;
}

}  // namespace

std::vector<std::byte> token_bytes(std::span<const std::int32_t> tokens, std::span<const SnapshotMedia> media) {
  std::vector<std::byte> bytes;
  bytes.reserve(tokens.size() * kSharedTextBytes);
  TokenWriter writer(media);
  for (const std::int32_t token : tokens) writer.append(token, bytes);
  return bytes;
}

std::optional<std::size_t> count_tokens(std::span<const std::byte> bytes) noexcept {
  static constexpr std::array<std::byte, 4> marker{std::byte{0xFF}, std::byte{0xFF}, std::byte{0xFF}, std::byte{0xFF}};
  std::size_t at = 0, count = 0;
  while (at < bytes.size()) {
    if (bytes.size() - at < kSharedTextBytes) return std::nullopt;
    const std::size_t size = bytes_of_next(bytes, at);
    if (bytes.size() - at < size) return std::nullopt;
    if (size == kSharedMediaBytes && !std::equal(marker.begin(), marker.end(), bytes.begin() + at)) return std::nullopt;
    at += size;
    ++count;
  }
  return count;
}

std::size_t common_tokens(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  const std::size_t shorter = std::min(a.size(), b.size());
  std::size_t at = 0, count = 0;
  while (at < shorter) {
    const std::size_t size = bytes_of_next(a, at);
    if (shorter - at < size || std::memcmp(a.data() + at, b.data() + at, size) != 0) break;
    at += size;
    ++count;
  }
  return count;
}

std::string shared_key(SharedKind kind, const Digest& digest) {
  return std::string("kvtrie:1:") + static_cast<char>(kind) + ':' + to_hex(digest);
}

SharedPath::SharedPath(SharedScope scope, std::span<const std::int32_t> tokens, std::span<const SnapshotMedia> media)
    : scope_(std::move(scope)) {
  if (scope_.keys != nullptr) key_ = scope_.keys->sealing(scope_.name_space);
  bytes_.reserve(tokens.size() * kSharedTextBytes);
  ends_.reserve(tokens.size() + 1);
  TokenWriter writer(media);
  ends_.push_back(0);
  boundaries_.push_back(name_of(scope_));
  for (const std::int32_t token : tokens) {
    writer.append(token, bytes_);
    ends_.push_back(bytes_.size());
    if (this->tokens() % kSharedBlock != 0) continue;
    boundaries_.push_back(extend(boundaries_.back(), bytes(this->tokens() - kSharedBlock, this->tokens())));
  }
}

std::span<const std::byte> SharedPath::bytes(std::size_t begin, std::size_t end) const {
  ensure(begin <= end && end <= tokens(), "shared store", "a range lies within the path");
  return {bytes_.data() + ends_[begin], ends_[end] - ends_[begin]};
}

std::string SharedPath::named(SharedKind kind, const Digest& digest) const {
  return shared_key(kind, key_ ? key_->name({field_of(kSealedNameDomain), digest}) : digest);
}

std::string SharedPath::index_key(std::size_t block) const { return named(SharedKind::kIndex, boundaries_.at(block)); }

std::string SharedPath::block_key(std::size_t block) const {
  ensure(block > 0, "shared store", "blocks are counted from 1");
  return named(SharedKind::kBlock, boundaries_.at(block));
}

std::string SharedPath::tail_key(std::size_t end) const {
  const std::size_t block = end / kSharedBlock;
  return key_behind(SharedKind::kTail, block, bytes(block * kSharedBlock, end));
}

std::string SharedPath::key_behind(SharedKind kind, std::size_t block, std::span<const std::byte> tokens) const {
  const Digest& boundary = boundaries_.at(block);
  return named(kind, tokens.empty() ? boundary : extend(boundary, tokens));
}

}  // namespace kvtrie
