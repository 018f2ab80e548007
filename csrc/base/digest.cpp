#include "base/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <new>

#include "base/error.h"
#include "base/little_endian.h"

namespace kvtrie {
namespace {

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const noexcept { EVP_MD_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_MD_CTX, FreeContext>;

Context new_context() {
  Context context(EVP_MD_CTX_new());
  if (context == nullptr) throw std::bad_alloc();
  return context;
}

// libcrypto refuses SHA-256 only where it has no provider of it.
void ensure_done(int result) { ensure(result == 1, "sha256", "libcrypto refused SHA-256"); }

void update(EVP_MD_CTX* context, const void* bytes, std::size_t count) {
  ensure_done(EVP_DigestUpdate(context, bytes, count));
}

void update_length(EVP_MD_CTX* context, std::uint64_t length) {
  std::array<std::byte, sizeof(length)> bytes;
  store_little_endian(length, bytes.data());
  update(context, bytes.data(), bytes.size());
}

}  // namespace

struct Sha256::State {
  Context context = new_context();
};

Sha256::Sha256(std::string_view domain) : state_(std::make_unique<State>()) {
  ensure_done(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr));
  field(domain);
}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

Sha256& Sha256::field(std::string_view text) { return field(std::as_bytes(std::span(text))); }

Sha256& Sha256::field(std::span<const std::byte> bytes) {
  update_length(state_->context.get(), bytes.size());
  update(state_->context.get(), bytes.data(), bytes.size());
  return *this;
}

Sha256& Sha256::field(std::span<const std::int32_t> values) {
  update_length(state_->context.get(), values.size_bytes());
  std::array<std::byte, 4096> block;
  constexpr std::size_t kValues = block.size() / sizeof(std::int32_t);
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), kValues);
    for (std::size_t i = 0; i < count; ++i) store_little_endian(values[i], block.data() + i * sizeof(std::int32_t));
    update(state_->context.get(), block.data(), count * sizeof(std::int32_t));
    values = values.subspan(count);
  }
  return *this;
}

Digest Sha256::finish() const {
  const Context copy = new_context();
  ensure_done(EVP_MD_CTX_copy_ex(copy.get(), state_->context.get()));
  Digest digest;
  unsigned int bytes = 0;
  ensure_done(EVP_DigestFinal_ex(copy.get(), reinterpret_cast<unsigned char*>(digest.data()), &bytes));
  ensure(bytes == digest.size(), "sha256", "digest: got ", bytes, " bytes, allowed ", digest.size());
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
