#include "cl/disk_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/checksum.h"
#include "base/error.h"
#include "base/log.h"

namespace kvtrie::cl {
namespace {

constexpr std::string_view kMagic = "kvtrie-cache 1\n";
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;

struct Lengths {
  std::uint64_t key = 0, value = 0, sum = 0;
};
constexpr std::size_t kHeaderBytes = kMagic.size() + sizeof(Lengths);

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const noexcept { return descriptor_; }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

bool read_all(int file, std::byte* to, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::read(file, to, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(file, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return true;
}

// Makes `folder` if need be. False when it cannot be used, with the reason logged.
bool prepare_folder(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(folder).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    log_message(LogLevel::kWarning,
                cat("[cache_folder] ", folder, ": got ", std::strerror(errno), "; programs are not cached on disk"));
    return false;
  }
  struct stat status {};
  const bool usable = ::stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
                      (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  if (!usable) {
    log_message(LogLevel::kWarning, cat("[cache_folder] ", folder,
                                        ": got a folder that others may write or own, allowed "
                                        "one of ours with mode 0700; programs are not cached on disk"));
  }
  return usable;
}

std::optional<std::vector<std::byte>> parse(std::span<const std::byte> file, std::string_view key) {
  if (file.size() < kHeaderBytes || std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0) return std::nullopt;
  Lengths lengths;
  std::memcpy(&lengths, file.data() + kMagic.size(), sizeof lengths);
  const std::span<const std::byte> body = file.subspan(kHeaderBytes);
  if (lengths.key > body.size() || lengths.value != body.size() - lengths.key) return std::nullopt;
  if (checksum(body) != lengths.sum) return std::nullopt;
  if (lengths.key != key.size() || std::memcmp(body.data(), key.data(), key.size()) != 0) return std::nullopt;
  const auto value = body.subspan(key.size());
  return std::vector<std::byte>(value.begin(), value.end());
}

std::vector<std::byte> compose(std::string_view key, std::span<const std::byte> value) {
  std::vector<std::byte> file(kHeaderBytes + key.size() + value.size());
  const std::span<std::byte> body = std::span(file).subspan(kHeaderBytes);
  std::memcpy(body.data(), key.data(), key.size());
  if (!value.empty()) std::memcpy(body.data() + key.size(), value.data(), value.size());
  const Lengths lengths{key.size(), value.size(), checksum(body)};
  std::memcpy(file.data(), kMagic.data(), kMagic.size());
  std::memcpy(file.data() + kMagic.size(), &lengths, sizeof lengths);
  return file;
}

std::optional<std::vector<std::byte>> read_file(const std::string& path) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  if (static_cast<std::uint64_t>(status.st_size) > kMaxFileBytes) return std::nullopt;
  std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
  if (!read_all(file.get(), bytes.data(), bytes.size())) return std::nullopt;
  return bytes;
}

// A name no other writer uses: process and count.
std::string temporary_name(const std::string& path) {
  static std::atomic<std::uint64_t> count{0};
  return cat(path, ".", ::getpid(), ".", count++, ".new");
}

bool publish(const std::string& path, std::span<const std::byte> bytes) {
  const std::string temporary = temporary_name(path);
  bool written = false;
  {
    const File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    written = file && write_all(file.get(), bytes);
  }
  if (written && std::rename(temporary.c_str(), path.c_str()) == 0) return true;
  ::unlink(temporary.c_str());
  return false;
}

}  // namespace

DiskCache::DiskCache(const std::string& folder) {
  if (!folder.empty() && prepare_folder(folder)) folder_ = folder;
}

std::string DiskCache::path_of(std::string_view key) const {
  char name[32];
  std::snprintf(name, sizeof name, "%016llx.kvc",
                static_cast<unsigned long long>(checksum(std::as_bytes(std::span(key)))));
  return folder_ + "/" + name;
}

std::optional<std::vector<std::byte>> DiskCache::load(std::string_view key) const noexcept {
  try {
    if (!enabled()) return std::nullopt;
    const std::string path = path_of(key);
    const auto file = read_file(path);
    if (!file) return std::nullopt;
    auto value = parse(*file, key);
    if (!value) log_message(LogLevel::kWarning, cat("[cache_folder] ", path, ": not what it says; made again"));
    return value;
  } catch (const std::exception& error) {
    log_message(LogLevel::kWarning, error.what());
    return std::nullopt;
  }
}

void DiskCache::store(std::string_view key, std::span<const std::byte> value) const noexcept {
  try {
    if (!enabled()) return;
    const std::string path = path_of(key);
    if (!publish(path, compose(key, value))) {
      log_message(LogLevel::kWarning, cat("[cache_folder] ", path, ": could not be written: ", std::strerror(errno)));
    }
  } catch (const std::exception& error) {
    log_message(LogLevel::kWarning, error.what());
  }
}

std::string key_of(std::initializer_list<std::string_view> fields) {
  std::string key;
  for (const std::string_view field : fields) {
    key += cat(field.size(), ":");
    key += field;
    key += '\n';
  }
  return key;
}

}  // namespace kvtrie::cl
