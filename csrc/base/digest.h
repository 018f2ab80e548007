// SHA-256, from OpenSSL's libcrypto: names that must not collide, whoever chose what is named.
//
// Several fields are hashed as one by length: each is preceded by its size, so that no two lists of fields give the
// same bytes ("org_1" + "2345" is not "org_12345" + "").
//
// Threads: pure; one `Sha256` belongs to one thread. Units: bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace kvtrie {

using Digest = std::array<std::byte, 32>;

std::string to_hex(const Digest& digest);  // 64 characters, lower case

class Sha256 {
 public:
  explicit Sha256(std::string_view domain);  // what is being named; a field like the others
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  Sha256& field(std::string_view text);                 // its length (8 bytes, little-endian), then its bytes
  Sha256& field(std::span<const std::byte> bytes);      // the same
  Sha256& field(std::span<const std::int32_t> values);  // the same; little-endian
  Digest finish() const;                                // of the fields so far; more may follow

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtrie
