#include "store/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <limits>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "base/fork.h"

namespace kvtrie {
namespace {

template <class Call>
auto again_when_interrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

FileInfo info_of(const struct stat& status) {
  FileInfo info;
  info.regular = S_ISREG(status.st_mode);
  info.named = status.st_nlink > 0;
  info.bytes = static_cast<std::uint64_t>(status.st_size);
  info.modified = static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
  info.identity.device = static_cast<std::uint64_t>(status.st_dev);
  info.identity.inode = static_cast<std::uint64_t>(status.st_ino);
  info.identity.modified_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  return info;
}

// Access lists count, too: what they allow shows in the bits of the group. In a sticky folder, somebody who may only
// add files can add one under a name that a cache will look for.
FolderAccess access_of(const struct stat& folder) {
  const bool own = folder.st_uid == ::geteuid() || folder.st_uid == 0;
  if (!own || (folder.st_mode & (S_IWGRP | S_IWOTH)) != 0) return FolderAccess::kOthersMayWrite;
  const bool alone = folder.st_uid == ::geteuid() && (folder.st_mode & (S_IRWXG | S_IRWXO)) == 0;
  return alone ? FolderAccess::kOwn : FolderAccess::kOthersMayLook;
}

// A write beyond RLIMIT_FSIZE raises SIGXFSZ, which ends the process unless somebody ignores it.
bool beyond_the_process_limit(std::uint64_t bytes) {
  struct rlimit limit {};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur;
}

class RealFile : public File {
 public:
  explicit RealFile(int descriptor) : descriptor_(descriptor) {}
  ~RealFile() override { RealFile::close(); }
  RealFile(const RealFile&) = delete;
  RealFile& operator=(const RealFile&) = delete;

  int write_all(std::span<const std::byte> bytes) override {
    if (beyond_the_process_limit(written_ + bytes.size())) return EFBIG;
    while (!bytes.empty()) {
      const ssize_t put = again_when_interrupted([&] { return ::write(descriptor_, bytes.data(), bytes.size()); });
      if (put < 0) return errno;
      if (put == 0) return EIO;
      written_ += static_cast<std::uint64_t>(put);
      bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
    return 0;
  }

  int read_at(std::uint64_t offset, std::span<std::byte> into) override {
    constexpr auto kLast = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
    if (offset > kLast || into.size() > kLast - offset) return EIO;
    while (!into.empty()) {
      const auto at = static_cast<off_t>(offset);
      const ssize_t got = again_when_interrupted([&] { return ::pread(descriptor_, into.data(), into.size(), at); });
      if (got < 0) return errno;
      if (got == 0) return EIO;
      offset += static_cast<std::uint64_t>(got);
      into = into.subspan(static_cast<std::size_t>(got));
    }
    return 0;
  }

  int info(FileInfo& info) override {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) return errno;
    info = info_of(status);
    return 0;
  }

  int sync() override { return ::fsync(descriptor_) == 0 ? 0 : errno; }

  // The descriptor is gone whatever close() says; interrupted is as good as closed, since the bytes were synced.
  int close() override {
    const int descriptor = std::exchange(descriptor_, -1);
    if (descriptor < 0 || ::close(descriptor) == 0 || errno == EINTR) return 0;
    return errno;
  }

 protected:
  int descriptor() const noexcept { return descriptor_; }
  void forget() noexcept { descriptor_ = -1; }  // without closing it

 private:
  int descriptor_;
  std::uint64_t written_ = 0;
};

// Held with flock: by this process alone, not by its forks, whichever ends first.
class HeldFile final : public RealFile {
 public:
  explicit HeldFile(int descriptor) : RealFile(descriptor), in_forks_(descriptor) {}
  ~HeldFile() override { HeldFile::close(); }
  HeldFile(const HeldFile&) = delete;
  HeldFile& operator=(const HeldFile&) = delete;

  // In a fork the descriptor is closed, or somebody else's by now.
  int close() override {
    if (!home_.is_here()) {
      forget();
      return 0;
    }
    if (descriptor() >= 0) again_when_interrupted([&] { return ::flock(descriptor(), LOCK_UN); });
    in_forks_.reset();
    return RealFile::close();
  }

 private:
  HomeProcess home_;
  std::optional<ClosedInForks> in_forks_;
};

// Takes over `descriptor`, the result of an open call.
template <class Kind = RealFile>
int wrap(int descriptor, std::unique_ptr<File>& file) {
  if (descriptor < 0) return errno;
  file.reset(new (std::nothrow) Kind(descriptor));
  if (file != nullptr) return 0;
  ::close(descriptor);
  return ENOMEM;
}

int open_descriptor(const std::string& path, int flags, mode_t mode = 0) {
  return again_when_interrupted([&] { return ::open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, mode); });
}

class RealFileSystem final : public FileSystem {
 public:
  int make_folder(const std::string& path, FolderAccess& access) override {
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return errno;
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return errno;
    if (!S_ISDIR(status.st_mode)) return ENOTDIR;
    access = access_of(status);
    return 0;
  }

  int list(const std::string& folder, std::vector<std::string>& names) override {
    DIR* const entries = ::opendir(folder.c_str());
    if (entries == nullptr) return errno;
    const int error = read_names(entries, names);
    ::closedir(entries);
    return error;
  }

  int create(const std::string& path, std::unique_ptr<File>& file) override {
    return wrap(open_descriptor(path, O_WRONLY | O_CREAT | O_EXCL, 0600), file);
  }

  int open(const std::string& path, std::unique_ptr<File>& file, FileInfo& info) override {
    if (const int error = wrap(open_descriptor(path, O_RDONLY | O_NONBLOCK), file)) return error;
    return file->info(info);
  }

  int rename(const std::string& from, const std::string& to) override {
    return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  }

  int remove(const std::string& path) override { return ::unlink(path.c_str()) == 0 ? 0 : errno; }

  int sync_folder(const std::string& path) override {
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    const int descriptor = again_when_interrupted([&] { return ::open(path.c_str(), flags); });
    if (descriptor < 0) return errno;
    const int error = ::fsync(descriptor) == 0 ? 0 : errno;
    ::close(descriptor);
    return error;
  }

  int lock(const std::string& path, std::unique_ptr<File>& held) override {
    const int descriptor = open_descriptor(path, O_RDWR | O_CREAT | O_NONBLOCK, 0600);
    std::unique_ptr<File> file;
    if (const int error = wrap<HeldFile>(descriptor, file)) return error;
    if (again_when_interrupted([&] { return ::flock(descriptor, LOCK_EX | LOCK_NB); }) != 0) return errno;
    held = std::move(file);
    return 0;
  }

  // Network file systems may have no locks for what is open for reading only, which a folder is.
  int hold_folder(const std::string& path, std::unique_ptr<File>& held) override {
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    const int descriptor = again_when_interrupted([&] { return ::open(path.c_str(), flags); });
    std::unique_ptr<File> file;
    if (wrap<HeldFile>(descriptor, file) != 0) return 0;
    if (again_when_interrupted([&] { return ::flock(descriptor, LOCK_EX | LOCK_NB); }) == 0) {
      held = std::move(file);
      return 0;
    }
    return errno == EWOULDBLOCK ? EWOULDBLOCK : 0;
  }

  int same_folder(const std::string& path, File& held) override {
    FileInfo own;
    if (const int error = held.info(own)) return error;
    if (!own.named) return ENOENT;
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return errno == ENOENT ? ESTALE : errno;
    const FileIdentity there = info_of(status).identity;
    return there.device == own.identity.device && there.inode == own.identity.inode ? 0 : ESTALE;
  }

 private:
  static int read_names(DIR* entries, std::vector<std::string>& names) {
    try {
      errno = 0;
      for (const dirent* entry = ::readdir(entries); entry != nullptr; entry = ::readdir(entries)) {
        const std::string_view name = entry->d_name;
        if (name != "." && name != "..") names.emplace_back(name);
        errno = 0;
      }
      return errno;
    } catch (const std::bad_alloc&) {
      return ENOMEM;
    }
  }
};

}  // namespace

std::shared_ptr<FileSystem> real_file_system() {
  static const std::shared_ptr<FileSystem> files = std::make_shared<RealFileSystem>();
  return files;
}

}  // namespace kvtrie
