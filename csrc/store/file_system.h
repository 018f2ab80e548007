// The file system seam: every call that the disk tier makes, so that tests can let any of them fail, or lose what was
// not synced.
//
//   real_file_system()    POSIX calls
//   FaultyFileSystem      (tests/cpp) the same in memory: fails the nth call, writes short, forgets unsynced bytes
//
// Files are read with pread, never mapped: a mapped read turns an I/O error, or a file that another process cut short,
// into SIGBUS, which ends the process. Here both are an error code.
//
// Threads: any; a `File` that is being written belongs to one thread, `read_at` may be called by several. Errors are
// `errno` values; 0 is success. Nothing throws. Units: bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvtrie {

// Tells one file from another that took its name. Inode numbers are used again, so the time of the last write is a
// part of it; renaming changes neither.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0;
  std::int64_t modified_ns = 0;  // since 1970
  bool operator==(const FileIdentity&) const = default;
};

struct FileInfo {
  bool regular = false;
  std::uint64_t bytes = 0;
  double modified = 0;  // seconds since 1970
  FileIdentity identity;
  bool named = true;  // false: it was removed, and is only open
};

// An open file. Closed by its destructor; a failed close is reported by `close`.
class File {
 public:
  virtual ~File() = default;
  virtual int write_all(std::span<const std::byte> bytes) = 0;               // at the end; short writes go on
  virtual int read_at(std::uint64_t offset, std::span<std::byte> into) = 0;  // all of it, or EIO at the end
  virtual int info(FileInfo& info) = 0;
  virtual int sync() = 0;  // once: after a failure nobody knows what the disk holds
  virtual int close() = 0;
};

// The rights of others than our own user in a folder.
enum class FolderAccess : std::uint8_t {
  kOwn,
  kOthersMayLook,
  kOthersMayWrite,  // its group or all may, or it is neither ours nor root's
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // 0700; 0 also when it is there.
  virtual int make_folder(const std::string& path, FolderAccess& access) = 0;
  virtual int list(const std::string& folder, std::vector<std::string>& names) = 0;  // "." and ".." left out
  virtual int create(const std::string& path, std::unique_ptr<File>& file) = 0;      // 0600, must not exist
  // Never follows a link (ELOOP), never blocks on a FIFO. `info` is of the opened file.
  virtual int open(const std::string& path, std::unique_ptr<File>& file, FileInfo& info) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;  // replaces `to` at once
  virtual int remove(const std::string& path) = 0;
  virtual int sync_folder(const std::string& path) = 0;
  // EWOULDBLOCK when somebody holds it. Let go of by `close`, the destructor or the end of the process.
  virtual int lock(const std::string& path, std::unique_ptr<File>& held) = 0;
  // The same of a folder that is there, as far as the file system can: 0 without `held` where it cannot. Forks of this
  // process hold neither.
  virtual int hold_folder(const std::string& path, std::unique_ptr<File>& held) = 0;
  // 0: `path` is the folder that `held` is of. ESTALE: it was moved, or unmounted. ENOENT: it was removed, and with it
  // all that was in it.
  virtual int same_folder(const std::string& /*path*/, File& /*held*/) { return 0; }
};

std::shared_ptr<FileSystem> real_file_system();

}  // namespace kvtrie
