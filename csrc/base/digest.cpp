#include "base/digest.h"

// The functions of SHA-256 itself: of a static libcrypto they take 20 KB, where EVP would bring every algorithm along.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <algorithm>

#include "base/error.h"
#include "base/little_endian.h"

namespace kvtrie {
namespace {

// They fail on a null pointer only.
void ensure_done(int result) { ensure(result == 1, "sha256", "libcrypto refused SHA-256"); }

void update(SHA256_CTX& context, const void* bytes, std::size_t count) {
  ensure_done(SHA256_Update(&context, bytes, count));
}

void update_length(SHA256_CTX& context, std::uint64_t length) {
  std::array<std::byte, sizeof(length)> bytes;
  store_little_endian(length, bytes.data());
  update(context, bytes.data(), bytes.size());
}

}  // namespace

struct Sha256::State {
  SHA256_CTX context;
};

Sha256::Sha256(std::string_view domain) : state_(std::make_unique<State>()) {
  ensure_done(SHA256_Init(&state_->context));
  field(domain);
}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

Sha256& Sha256::field(std::string_view text) { return field(std::as_bytes(std::span(text))); }

Sha256& Sha256::field(std::span<const std::byte> bytes) {
  update_length(state_->context, bytes.size());
  update(state_->context, bytes.data(), bytes.size());
  return *this;
}

Sha256& Sha256::field(std::span<const std::int32_t> values) {
  update_length(state_->context, values.size_bytes());
  std::array<std::byte, 4096> block;
  constexpr std::size_t kValues = block.size() / sizeof(std::int32_t);
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), kValues);
    for (std::size_t i = 0; i < count; ++i) store_little_endian(values[i], block.data() + i * sizeof(std::int32_t));
    update(state_->context, block.data(), count * sizeof(std::int32_t));
    values = values.subspan(count);
  }
  return *this;
}

Digest Sha256::finish() const {
  SHA256_CTX copy = state_->context;
  Digest digest;
  ensure_done(SHA256_Final(reinterpret_cast<unsigned char*>(digest.data()), &copy));
  return digest;
}

std::string to_hex(const Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * digest.size());
  for (const std::byte byte : digest) {
    text += kDigits[std::to_integer<unsigned>(byte >> 4)];
    text += kDigits[std::to_integer<unsigned>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace kvtrie
