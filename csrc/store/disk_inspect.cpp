#include "store/disk_inspect.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <span>
#include <system_error>

#include "base/error.h"
#include "store/disk_names.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kFirstRead = 4096;  // bytes; enough for the header of a short conversation

SnapshotFault inspect_open(File& file, const FileInfo& info, InspectedFile& found) {
  if (!info.regular) return SnapshotFault::kNotRegular;
  std::vector<std::byte> beginning;
  DecodedSnapshot decoded = read_header(file, info.bytes, beginning);
  if (decoded.fault != SnapshotFault::kNone) return decoded.fault;
  if (snapshot_name(decoded.header, std::span(beginning).first(decoded.images_begin)) != found.name)
    return SnapshotFault::kTokens;
  found.header = std::move(decoded.header);
  return SnapshotFault::kNone;
}

// False: it is gone by now.
bool inspect_file(const std::string& folder, FileSystem& files, InspectedFile& found) {
  std::unique_ptr<File> file;
  FileInfo info;
  const int error = files.open(folder + "/" + found.name, file, info);
  if (error == ENOENT) return false;
  found.bytes = info.bytes;
  found.modified = info.modified;
  found.fault = error != 0 ? fault_of_open(error) : inspect_open(*file, info, found);
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
    if (file.read_at(have, std::span(beginning).subspan(have)) != 0) {
      decoded.fault = SnapshotFault::kIo;
      return decoded;
    }
    decoded = decode_header(beginning, bytes);
    want = std::min({decoded.needed, bytes, kMaxHeaderBytes});
  } while (decoded.fault == SnapshotFault::kTruncated && want > beginning.size());
  return decoded;
}

InspectedFolder inspect_folder(const std::string& folder, FileSystem& files) {
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
      if (inspect_file(folder, files, found)) inspected.files.push_back(std::move(found));
    } else if (is_temporary_name(found.name)) {
      ++inspected.temporary;
    } else if (found.name != kLockName) {
      ++inspected.others;
    }
  }
  return inspected;
}

}  // namespace kvtrie
