// Looking into a folder of snapshots from outside: what a disk tier or a saved cache holds.
//
// Only headers are read. No lock is taken, nothing is written, links are not followed; so it works while a cache has
// the folder open, and the answer may be slightly out of date.
//
// Threads: any. Units: bytes, tokens, seconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/file_system.h"
#include "store/key_ring.h"
#include "store/snapshot_format.h"

namespace kvtrie {

// One file whose name is a snapshot's. `header` is empty unless `fault` is kNone.
struct InspectedFile {
  std::string name;
  std::uint64_t bytes = 0;
  double modified = 0;  // seconds since 1970
  std::string key;      // of a sealed one, the id of its key (16 hex digits); empty: it is not sealed, or has no head
  SnapshotFault fault = SnapshotFault::kNone;  // of a sealed one kSealed without keys, kKey without its own
  SnapshotHeader header;
};

struct InspectedFolder {
  std::vector<InspectedFile> files;  // by name; one that went meanwhile is left out
  std::uint64_t temporary = 0;       // being written, or left by a process that ended in between
  std::uint64_t others = 0;          // under names that are none of ours
};

// `keys`: to look into sealed ones; null: none. Throws kFormat when the folder cannot be listed.
InspectedFolder inspect_folder(const std::string& folder, const KeyRing* keys = nullptr,
                               FileSystem& files = *real_file_system());
inline InspectedFolder inspect_folder(const std::string& folder, FileSystem& files) {
  return inspect_folder(folder, nullptr, files);
}

// The header at the beginning of an open file whose content has `bytes` bytes; reads no more than the decoder asks for,
// and never more than there is. `beginning`: what was read, at least all in front of the images when there is no fault.
DecodedSnapshot read_header(File& file, std::uint64_t bytes, std::vector<std::byte>& beginning);
// Whether the file's name follows from what it is of. `key`: with which it was sealed; null: it was not. Faults:
// kNamespace, kTokens. REQUIRES: `decoded` has no fault, and `beginning` is what it was decoded from.
SnapshotFault check_name(const DecodedSnapshot& decoded, std::span<const std::byte> beginning, const NamespaceKey* key,
                         const std::string& name);

// The fault that a failed `open` reports about the file.
SnapshotFault fault_of_open(int error) noexcept;

}  // namespace kvtrie
