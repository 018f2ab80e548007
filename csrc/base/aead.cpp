#include "base/aead.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/little_endian.h"

namespace kvtrie {
namespace {

// OpenSSL refuses a call with complete arguments for lack of memory only.
void require_memory(bool done) {
  if (!done) throw std::bad_alloc();
}

// Errors that others have in this thread's list of OpenSSL's errors stay there.
class OwnErrors {
 public:
  OwnErrors() noexcept { ERR_set_mark(); }
  ~OwnErrors() { ERR_pop_to_mark(); }
  OwnErrors(const OwnErrors&) = delete;
  OwnErrors& operator=(const OwnErrors&) = delete;
};

// A context of our own, which no configuration file of the machine changes; for as long as the process lives.
struct CryptoLibrary {
  OSSL_LIB_CTX* context = nullptr;
  EVP_CIPHER* cipher = nullptr;
  EVP_KDF* kdf = nullptr;
  EVP_MAC* mac = nullptr;

  CryptoLibrary() {
    const OwnErrors own;
    context = OSSL_LIB_CTX_new();
    if (context != nullptr) cipher = EVP_CIPHER_fetch(context, "AES-256-GCM", nullptr);
    if (cipher != nullptr) kdf = EVP_KDF_fetch(context, "HKDF", nullptr);
    if (kdf != nullptr) mac = EVP_MAC_fetch(context, "HMAC", nullptr);
    if (mac != nullptr) return;
    EVP_KDF_free(kdf);
    EVP_CIPHER_free(cipher);
    OSSL_LIB_CTX_free(context);
    fail(ErrorKind::kNotSupported, "libcrypto", "algorithms: got no AES-256-GCM, HKDF and HMAC from it, allowed ",
         "OpenSSL 3.0 or newer with its default provider, and memory for it");
  }
};

// The first call that succeeds makes it.
const CryptoLibrary& library() {
  static const CryptoLibrary* const made = new CryptoLibrary();
  return *made;
}

std::vector<std::byte> joined(Fields fields) {
  std::vector<std::byte> bytes;
  for (const std::span<const std::byte> field : fields) {
    std::array<std::byte, sizeof(std::uint64_t)> length;
    store_little_endian(std::uint64_t{field.size()}, length.data());
    bytes.insert(bytes.end(), length.begin(), length.end());
    bytes.insert(bytes.end(), field.begin(), field.end());
  }
  return bytes;
}

// libcrypto takes what it only reads through pointers that may write.
OSSL_PARAM bytes_parameter(const char* name, std::span<const std::byte> bytes) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<std::byte*>(bytes.data()), bytes.size());
}

OSSL_PARAM sha256_parameter(const char* name) {
  static char digest[] = "SHA256";
  return OSSL_PARAM_construct_utf8_string(name, digest, 0);
}

unsigned char* raw(std::byte* bytes) noexcept { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) noexcept { return reinterpret_cast<const unsigned char*>(bytes); }

constexpr std::size_t kMostAtOnce = std::numeric_limits<int>::max();  // what libcrypto can count

}  // namespace

void wipe(std::span<std::byte> bytes) noexcept { OPENSSL_cleanse(bytes.data(), bytes.size()); }

SecretKey::SecretKey(std::span<const std::byte, kBytes> bytes) noexcept {
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
}

bool SecretKey::operator==(const SecretKey& other) const noexcept {
  return CRYPTO_memcmp(bytes_.data(), other.bytes_.data(), kBytes) == 0;
}

SecretKey derive_key(const SecretKey& key, std::span<const std::byte> salt, Fields fields) {
  const CryptoLibrary& crypto = library();
  const std::vector<std::byte> info = joined(fields);
  const OwnErrors own;
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(EVP_KDF_CTX_new(crypto.kdf),
                                                                          &EVP_KDF_CTX_free);
  std::array<OSSL_PARAM, 5> parameters{
      sha256_parameter(OSSL_KDF_PARAM_DIGEST), bytes_parameter(OSSL_KDF_PARAM_KEY, key.bytes()),
      bytes_parameter(OSSL_KDF_PARAM_INFO, info), OSSL_PARAM_construct_end(), OSSL_PARAM_construct_end()};
  if (!salt.empty()) parameters[3] = bytes_parameter(OSSL_KDF_PARAM_SALT, salt);
  SecretKey derived;
  require_memory(context != nullptr &&
                 EVP_KDF_derive(context.get(), raw(derived.bytes_.data()), SecretKey::kBytes, parameters.data()) == 1);
  return derived;
}

Digest keyed_digest(const SecretKey& key, Fields fields) {
  const CryptoLibrary& crypto = library();
  const std::vector<std::byte> text = joined(fields);
  const OwnErrors own;
  const std::unique_ptr<EVP_MAC_CTX, decltype(&EVP_MAC_CTX_free)> context(EVP_MAC_CTX_new(crypto.mac),
                                                                          &EVP_MAC_CTX_free);
  const std::array<OSSL_PARAM, 2> parameters{sha256_parameter(OSSL_MAC_PARAM_DIGEST), OSSL_PARAM_construct_end()};
  Digest digest{};
  std::size_t bytes = 0;
  require_memory(context != nullptr &&
                 EVP_MAC_init(context.get(), raw(key.bytes().data()), SecretKey::kBytes, parameters.data()) == 1 &&
                 EVP_MAC_update(context.get(), raw(text.data()), text.size()) == 1 &&
                 EVP_MAC_final(context.get(), raw(digest.data()), &bytes, digest.size()) == 1 &&
                 bytes == digest.size());
  return digest;
}

struct Aead::State {
  std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context{EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free};
  SecretKey key;
  int direction = -1;  // 1: encrypts, 0: decrypts, -1: no key is set up yet

  bool begin(int wanted, const Nonce& nonce) noexcept {
    const bool again = direction == wanted;
    if (EVP_CipherInit_ex2(context.get(), again ? nullptr : library().cipher, again ? nullptr : raw(key.bytes().data()),
                           raw(nonce.data()), wanted, nullptr) != 1)
      return false;
    direction = wanted;
    return true;
  }

  bool update(std::span<const std::byte> from, std::byte* into) noexcept {
    int done = 0;
    return from.size() <= kMostAtOnce &&
           EVP_CipherUpdate(context.get(), raw(into), &done, raw(from.data()), static_cast<int>(from.size())) == 1 &&
           static_cast<std::size_t>(done) == from.size();
  }

  bool finish() noexcept {
    std::array<unsigned char, 16> nothing{};  // GCM leaves none over
    int done = 0;
    return EVP_CipherFinal_ex(context.get(), nothing.data(), &done) == 1 && done == 0;
  }
};

Aead::Aead(const SecretKey& key) {
  static_cast<void>(library());
  const OwnErrors own;
  state_ = std::make_unique<State>();
  require_memory(state_->context != nullptr);
  state_->key = key;
}

Aead::~Aead() = default;

bool Aead::seal(const Nonce& nonce, std::span<std::byte> text, std::span<std::byte, kTagBytes> tag) noexcept {
  const OwnErrors own;
  if (state_->begin(1, nonce) && state_->update(text, text.data()) && state_->finish() &&
      EVP_CIPHER_CTX_ctrl(state_->context.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()) == 1)
    return true;
  wipe(text);
  wipe(tag);
  return false;
}

bool Aead::open(const Nonce& nonce, std::span<const std::byte> from, std::span<const std::byte, kTagBytes> tag,
                std::span<std::byte> into) noexcept {
  const OwnErrors own;
  std::array<std::byte, kTagBytes> wanted;  // libcrypto takes it through a pointer that may write
  std::copy(tag.begin(), tag.end(), wanted.begin());
  if (from.size() == into.size() && state_->begin(0, nonce) &&
      EVP_CIPHER_CTX_ctrl(state_->context.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes, wanted.data()) == 1 &&
      state_->update(from, into.data()) && state_->finish())
    return true;
  wipe(into);
  return false;
}

}  // namespace kvtrie
