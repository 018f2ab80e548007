// Keys, and what is done with them: AES-256-GCM, HKDF-SHA256 and HMAC-SHA256, all of them OpenSSL's.
//
// Keys and names are derived from *fields*, each hashed with its length in front (8 bytes, little-endian), so that no
// two lists of fields are alike; the first field names the purpose. To encrypt twice under one key with one nonce gives
// both texts away: each key here is derived for one content, and nonces count its records.
//
// Nothing here is taken from the process's own OpenSSL configuration, and nothing is freed when the process ends: a
// thread that is still writing then does no harm. A forked process may use all of it: there is no random source here.
//
// Threads: pure; one `Aead` belongs to one thread. Units: bytes. Errors: std::bad_alloc when libcrypto
// refuses, kNotSupported when it has not these algorithms.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>

#include "base/digest.h"

namespace kvtrie {

void wipe(std::span<std::byte> bytes) noexcept;  // which no compiler leaves out

// 32 secret bytes, overwritten when they go.
class SecretKey {
 public:
  static constexpr std::size_t kBytes = 32;

  SecretKey() noexcept = default;  // zeros
  explicit SecretKey(std::span<const std::byte, kBytes> bytes) noexcept;
  SecretKey(const SecretKey&) noexcept = default;
  SecretKey& operator=(const SecretKey&) noexcept = default;
  ~SecretKey() { wipe(bytes_); }

  std::span<const std::byte, kBytes> bytes() const noexcept { return bytes_; }
  bool operator==(const SecretKey& other) const noexcept;  // takes as long wherever they differ

 private:
  friend SecretKey derive_key(const SecretKey& key, std::span<const std::byte> salt,
                              std::initializer_list<std::span<const std::byte>> fields);
  std::array<std::byte, kBytes> bytes_{};
};

inline std::span<const std::byte> field_of(std::string_view text) noexcept { return std::as_bytes(std::span(text)); }

using Fields = std::initializer_list<std::span<const std::byte>>;

// HKDF-SHA256 (RFC 5869), its info being the fields.
SecretKey derive_key(const SecretKey& key, std::span<const std::byte> salt, Fields fields);
// HMAC-SHA256 of the fields.
Digest keyed_digest(const SecretKey& key, Fields fields);

// AES-256-GCM (NIST SP 800-38D) under one key.
class Aead {
 public:
  static constexpr std::size_t kNonceBytes = 12, kTagBytes = 16;
  using Nonce = std::array<std::byte, kNonceBytes>;

  explicit Aead(const SecretKey& key);
  ~Aead();
  Aead(const Aead&) = delete;
  Aead& operator=(const Aead&) = delete;

  // Encrypts `text` where it lies. False: libcrypto refused; the bytes are zeros then.
  bool seal(const Nonce& nonce, std::span<std::byte> text, std::span<std::byte, kTagBytes> tag) noexcept;
  // Decrypts `from` into `into`, which is as long and may be the same. False: they are not what was sealed under this
  // key and nonce; `into` is zeros then.
  bool open(const Nonce& nonce, std::span<const std::byte> from, std::span<const std::byte, kTagBytes> tag,
            std::span<std::byte> into) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtrie
