// Allocations of libcrypto that fail, so that a test sees what a call leaves behind when OpenSSL refuses. Programs that
// include this have its allocator replaced before it allocates anything.
#pragma once

#include <openssl/crypto.h>

#include <cstdint>
#include <cstdlib>

namespace kvtrie::testing {

inline thread_local std::uint64_t libcrypto_until_failure = 0;  // of this thread; 0: none fails

inline bool libcrypto_fails_now() noexcept { return libcrypto_until_failure > 0 && --libcrypto_until_failure == 0; }

inline const bool kLibcryptoCounts =
    CRYPTO_set_mem_functions([](std::size_t bytes, const char*,
                                int) -> void* { return libcrypto_fails_now() ? nullptr : std::malloc(bytes); },
                             [](void* memory, std::size_t bytes, const char*, int) -> void* {
                               return libcrypto_fails_now() ? nullptr : std::realloc(memory, bytes);
                             },
                             [](void* memory, const char*, int) { std::free(memory); }) == 1;

// Whether libcrypto's n-th allocation (from 1) during `call` was asked for, and failed. Tests ask with 1, 2, ... until
// it was not.
template <class Call>
bool libcrypto_refuses(std::uint64_t n, Call&& call) {
  libcrypto_until_failure = n;
  call();
  const bool failed = libcrypto_until_failure == 0;
  libcrypto_until_failure = 0;
  return failed;
}

}  // namespace kvtrie::testing
