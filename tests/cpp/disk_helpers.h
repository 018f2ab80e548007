// Small snapshots for the tests of the disk tier, and a folder of the real file system to keep them in.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/log.h"
#include "store/blob.h"
#include "store/disk_names.h"
#include "store/disk_tier.h"
#include "store/snapshot_format.h"
#include "temporary_folder.h"

namespace kvtrie::test {

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// One snapshot with one image, of sections of 40 bytes.
struct Entry {
  SnapshotHeader header;
  Bytes encoded, image;

  std::uint64_t bytes() const { return encoded.size() + image.size(); }
  std::string name() const { return snapshot_name(header, encoded); }
  Bytes file() const {
    Bytes all = encoded;
    all.insert(all.end(), image.begin(), image.end());
    return all;
  }
};

struct EntryShape {
  std::string fingerprint = "model-a", name_space = "default";
  std::int32_t start = 0;
  std::size_t image_bytes = 96;
};

inline std::vector<BlobSection> sections_of(const SnapshotImage& image) {
  std::vector<BlobSection> sections;
  std::uint64_t offset = 0;
  for (const SnapshotSection& section : image.sections) {
    sections.push_back({offset, section.bytes});
    offset += section.bytes;
  }
  return sections;
}

inline Entry entry_of(std::vector<std::int32_t> tokens, std::uint64_t seed, const EntryShape& shape = {}) {
  Entry entry;
  entry.image = random_bytes(shape.image_bytes, seed);
  SnapshotImage image;
  image.first = shape.start;
  image.cells = static_cast<std::uint32_t>(tokens.size()) - static_cast<std::uint32_t>(shape.start);
  for (std::size_t at = 0; at < entry.image.size(); at += 40) {
    const auto section = std::span(entry.image).subspan(at, std::min<std::size_t>(40, entry.image.size() - at));
    image.sections.push_back({section.size(), checksum(section)});
  }
  entry.header.fingerprint = shape.fingerprint;
  entry.header.name_space = shape.name_space;
  entry.header.tokens = std::move(tokens);
  entry.header.start = shape.start;
  entry.header.caches = {{SnapshotCache::Kind::kAttention, 0, {1}}};
  entry.header.images = {std::move(image)};
  entry.encoded = encode_header(entry.header);
  return entry;
}

inline std::vector<std::int32_t> path_of_length(std::int32_t count) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

inline DiskFilePtr write(DiskTier& tier, const Entry& entry) {
  if (!tier.reserve(entry.bytes())) return nullptr;
  const std::array<std::span<const std::byte>, 1> images{entry.image};
  return tier.write(entry.header, entry.encoded, images);
}

inline Bytes read_all(DiskFile& file) {
  Bytes bytes(file.bytes());
  if (!file.read(0, bytes)) bytes.clear();
  return bytes;
}

// What a prefix cache would get of the image: nothing, or bytes whose checksums are right.
inline Bytes read_verified(const FoundSnapshot& found) {
  const SnapshotImage& image = found.header.images.at(0);
  std::vector<std::uint64_t> checksums;
  for (const SnapshotSection& section : image.sections) checksums.push_back(section.checksum);
  std::vector<std::uint32_t> numbers(checksums.size());
  std::iota(numbers.begin(), numbers.end(), 0U);
  const BlobPtr blob = Blob::in_file(sections_of(image), std::move(checksums), found.file, found.images_begin);
  Bytes bytes(blob->bytes());
  if (!blob->read(numbers, bytes)) bytes.clear();
  return bytes;
}

inline std::uint64_t refused(const DiskTier& tier, SnapshotFault fault) {
  return tier.stats().refused.at(static_cast<std::size_t>(fault));
}

inline Bytes contents(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

inline void put(const std::filesystem::path& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

// Collects what the library logs while it lives.
class Log {
 public:
  Log() {
    set_log_sink([lines = lines_](LogLevel, const std::string& line) {
      const std::lock_guard lock(lines->mutex);
      lines->text.push_back(line);
    });
  }
  ~Log() { set_log_sink({}); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  std::size_t count(const std::string& part) const {
    const std::lock_guard lock(lines_->mutex);
    return static_cast<std::size_t>(
        std::count_if(lines_->text.begin(), lines_->text.end(),
                      [&](const std::string& line) { return line.find(part) != std::string::npos; }));
  }

 private:
  struct Lines {
    std::mutex mutex;
    std::vector<std::string> text;
  };
  std::shared_ptr<Lines> lines_ = std::make_shared<Lines>();
};

}  // namespace kvtrie::test
