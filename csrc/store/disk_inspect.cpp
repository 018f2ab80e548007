#include "store/disk_inspect.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "store/disk_names.h"
#include "store/sealed_content.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kFirstRead = 4096;  // bytes; enough for the header of a short conversation

SnapshotFault inspect_content(File& file, std::uint64_t bytes, const NamespaceKey* key, InspectedFile& found) {
  std::vector<std::byte> beginning;
  DecodedSnapshot decoded = read_header(file, bytes, beginning);
  if (decoded.fault != SnapshotFault::kNone) return decoded.fault;
  if (const SnapshotFault fault = check_name(decoded, beginning, key, found.name); fault != SnapshotFault::kNone)
    return fault;
  found.header = std::move(decoded.header);
  return SnapshotFault::kNone;
}

SnapshotFault inspect_sealed(std::unique_ptr<File> file, const KeyRing* keys, InspectedFile& found) {
  SealedHead head;
  if (const SnapshotFault fault = read_sealed_head(*file, found.bytes, head); fault != SnapshotFault::kNone)
    return fault;
  found.key = to_hex(head.id);
  if (keys == nullptr) return SnapshotFault::kSealed;
  std::unique_ptr<SealedFile> content;
  const SnapshotFault fault = SealedFile::open(std::move(file), found.bytes, *keys, found.name, content);
  if (fault != SnapshotFault::kNone) return fault;
  return inspect_content(*content, content->content_bytes(), &content->key(), found);
}

SnapshotFault inspect_open(std::unique_ptr<File> file, const FileInfo& info, const KeyRing* keys,
                           InspectedFile& found) {
  if (!info.regular) return SnapshotFault::kNotRegular;
  if (is_sealed_name(found.name)) return inspect_sealed(std::move(file), keys, found);
  return inspect_content(*file, info.bytes, nullptr, found);
}

// False: it is gone by now.
bool inspect_file(const std::string& folder, const KeyRing* keys, FileSystem& files, InspectedFile& found) {
  std::unique_ptr<File> file;
  FileInfo info;
  const int error = files.open(folder + "/" + found.name, file, info);
  if (error == ENOENT) return false;
  found.bytes = info.bytes;
  found.modified = info.modified;
  found.fault = error != 0 ? fault_of_open(error) : inspect_open(std::move(file), info, keys, found);
  return true;
}

}  // namespace

SnapshotFault fault_of_open(int error) noexcept {
  return error == ELOOP || error == ENXIO || error == EISDIR ? SnapshotFault::kNotRegular : SnapshotFault::kIo;
}

DecodedSnapshot read_header(File& file, std::uint64_t bytes, std::vector<std::byte>& beginning) {
  DecodedSnapshot decoded;
  std::uint64_t want = std::min(bytes, kFirstRead);
  do {
    const std::size_t have = beginning.size();
    beginning.resize(want);
    if (const int error = file.read_at(have, std::span(beginning).subspan(have))) {
      decoded.fault = error == EBADMSG ? SnapshotFault::kChecksum : SnapshotFault::kIo;
      return decoded;
    }
    decoded = decode_header(beginning, bytes);
    want = std::min({decoded.needed, bytes, kMaxHeaderBytes});
  } while (decoded.fault == SnapshotFault::kTruncated && want > beginning.size());
  return decoded;
}

SnapshotFault check_name(const DecodedSnapshot& decoded, std::span<const std::byte> beginning, const NamespaceKey* key,
                         const std::string& name) {
  if (key != nullptr && !KeyRing::may_be(*key, decoded.header.name_space)) return SnapshotFault::kNamespace;
  const std::string own = snapshot_name(decoded.header, beginning.first(decoded.images_begin), key);
  return own == name ? SnapshotFault::kNone : SnapshotFault::kTokens;
}

InspectedFolder inspect_folder(const std::string& folder, const KeyRing* keys, FileSystem& files) {
  std::vector<std::string> names;
  if (const int error = files.list(folder, names)) {
    fail(ErrorKind::kFormat, "inspect", "folder: got ", folder, " (", std::generic_category().message(error),
         "), allowed a folder that kvtrie writes to");
  }
  std::sort(names.begin(), names.end());
  InspectedFolder inspected;
  for (std::string& name : names) {
    InspectedFile found;
    found.name = std::move(name);
    if (is_snapshot_name(found.name)) {
      if (inspect_file(folder, keys, files, found)) inspected.files.push_back(std::move(found));
    } else if (is_temporary_name(found.name)) {
      ++inspected.temporary;
    } else if (found.name != kLockName) {
      ++inspected.others;
    }
  }
  return inspected;
}

}  // namespace kvtrie
