// A content on its way out, a little at a time: as it lies in memory, or sealed while it goes (sealed_content.h).
//
// Threads: one at a time. Units: bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvtrie {

using Buffers = std::span<const std::span<const std::byte>>;  // a content that lies in several places, in order

class ContentSource {
 public:
  virtual ~ContentSource() = default;
  virtual std::uint64_t bytes() const noexcept = 0;  // in all
  // The next bytes, at most so many, where they lie until the next call. Empty: at the end; or they cannot be made, and
  // nothing of the content is to be used.
  virtual std::span<const std::byte> next(std::uint64_t most) noexcept = 0;
};

// The next so many bytes, into memory or behind what is there. False: not all of them came.
inline bool copy_next(ContentSource& content, std::span<std::byte> into) noexcept {
  while (!into.empty()) {
    const std::span<const std::byte> taken = content.next(into.size());
    if (taken.empty()) return false;
    std::copy(taken.begin(), taken.end(), into.begin());
    into = into.subspan(taken.size());
  }
  return true;
}

inline bool append_next(ContentSource& content, std::uint64_t bytes, std::vector<std::byte>& to) {
  while (bytes > 0) {
    const std::span<const std::byte> taken = content.next(bytes);
    if (taken.empty()) return false;
    to.insert(to.end(), taken.begin(), taken.end());
    bytes -= taken.size();
  }
  return true;
}

class BufferSource final : public ContentSource {
 public:
  // `bytes`: of all buffers together.
  BufferSource(Buffers buffers, std::uint64_t bytes) noexcept : buffers_(buffers), bytes_(bytes) {}
  std::uint64_t bytes() const noexcept override { return bytes_; }
  std::span<const std::byte> next(std::uint64_t most) noexcept override {
    while (buffer_ < buffers_.size() && at_ == buffers_[buffer_].size()) ++buffer_, at_ = 0;
    if (buffer_ == buffers_.size()) return {};
    const std::span<const std::byte> rest = buffers_[buffer_].subspan(at_);
    const std::span<const std::byte> taken = rest.first(std::min<std::uint64_t>(rest.size(), most));
    at_ += taken.size();
    return taken;
  }

 private:
  Buffers buffers_;
  std::uint64_t bytes_ = 0;
  std::size_t buffer_ = 0, at_ = 0;
};

}  // namespace kvtrie
