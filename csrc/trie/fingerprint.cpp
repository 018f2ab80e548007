#include "trie/fingerprint.h"

#include <bit>
#include <cstring>

#include "base/checksum.h"

namespace kvtrie {
namespace {

static_assert(std::endian::native == std::endian::little, "fingerprints are of little-endian bytes");

constexpr std::string_view kDomain = "kvtrie.paths.1";

}  // namespace

PathFingerprint::PathFingerprint(std::string_view name_space) noexcept
    : last_(checksum(std::as_bytes(std::span(kDomain))) ^ checksum(std::as_bytes(std::span(name_space)))) {}

bool PathFingerprint::take(Token token) noexcept {
  ended_ = ended_ || token < 0;
  if (ended_) return false;
  block_[pending_++] = token;
  if (pending_ < kFingerprintBlock) return false;
  std::array<std::byte, sizeof(Fingerprint) + kFingerprintBlock * sizeof(Token)> bytes;
  std::memcpy(bytes.data(), &last_, sizeof last_);
  std::memcpy(bytes.data() + sizeof last_, block_.data(), kFingerprintBlock * sizeof(Token));
  last_ = checksum(bytes);
  pending_ = 0;
  ++blocks_;
  return true;
}

std::vector<Fingerprint> fingerprints(std::string_view name_space, std::span<const Token> tokens) {
  std::vector<Fingerprint> found;
  found.reserve(tokens.size() / kFingerprintBlock);
  PathFingerprint path(name_space);
  path.feed(tokens, [&](std::size_t, Fingerprint each) { found.push_back(each); });
  return found;
}

}  // namespace kvtrie
