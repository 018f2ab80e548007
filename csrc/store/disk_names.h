// The names of the disk tier's files.
//
//     <64 hex>.<8 hex>.kvtrie         a complete snapshot
//     <64 hex>.<8 hex>.sealed         one that is sealed (sealed_content.h)
//     tmp-<one of these>.<n>          one that is being written; n tells apart two writers of the same snapshot
//     lock
//
// The first part is SHA-256 over what the snapshot is of: fingerprint, namespace, start, tokens, media. A negative
// token is of one process only, so it is hashed as -(1 + index of its media entry), beside the entry's digest. The
// second part is of the checksum of all bytes in front of the images, which hold the checksums of the images: other
// content that is of the same tokens has another name. A file is believed only when its name follows from its header.
// Of a sealed one both parts are made with the key of its namespace, so that who guesses a prompt cannot see whether
// it is there: HMAC-SHA256("kvtrie.seal.file.1", the first part as above), and the first 4 bytes of
// HMAC-SHA256("kvtrie.seal.file.1", the same, the whole checksum).
//
// Threads: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "store/key_ring.h"
#include "store/snapshot_format.h"

namespace kvtrie {

inline constexpr const char* kLockName = "lock";

// `header_bytes`: everything in front of the first image. `key`: that of its namespace; null: it is not sealed. Throws
// kArgument when a negative token has no media entry.
std::string snapshot_name(const SnapshotHeader& header, std::span<const std::byte> header_bytes,
                          const NamespaceKey* key = nullptr);
std::string temporary_name(const std::string& snapshot, std::uint64_t number);

bool is_snapshot_name(std::string_view name) noexcept;  // sealed or not
bool is_sealed_name(std::string_view name) noexcept;
bool is_temporary_name(std::string_view name) noexcept;

}  // namespace kvtrie
