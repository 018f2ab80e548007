#include "store/host_tier.h"

#include <cstdlib>
#include <exception>
#include <utility>

#include "base/checksum.h"
#include "base/log.h"

namespace kvtrie {
namespace {

constexpr std::size_t kAlignment = 64;

std::byte* allocate_aligned(std::uint64_t bytes) {
  const std::uint64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded));
}

}  // namespace

HostBlob::HostBlob(std::shared_ptr<HostTier> tier, std::uint64_t bytes, std::vector<BlobSection> sections)
    : tier_(std::move(tier)), bytes_(bytes), sections_(std::move(sections)) {}

HostBlob::~HostBlob() {
  std::free(data_);
  tier_->used_bytes_ -= bytes_;
}

HostBlob::State HostBlob::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

void HostBlob::expect(std::function<void()> wait) {
  std::lock_guard lock(mutex_);
  wait_ = std::move(wait);
}

void HostBlob::seal() noexcept {
  std::lock_guard lock(mutex_);
  if (state_ != State::kFilling) return;
  try {
    if (wait_) wait_();
    wait_ = nullptr;
    checksums_.reserve(sections_.size());
    for (const BlobSection& section : sections_) {
      checksums_.push_back(checksum({data_ + section.offset, section.bytes}));
    }
    state_ = State::kSealed;
  } catch (const std::exception& error) {
    wait_ = nullptr;
    state_ = State::kFailed;
    ++tier_->failed_blobs_;
    log_message(LogLevel::kWarning, std::string("host tier: an image did not arrive: ") + error.what());
  }
}

bool HostBlob::verify(std::span<const std::uint32_t> sections) {
  seal();
  std::lock_guard lock(mutex_);
  if (state_ != State::kSealed) return false;
  for (std::uint32_t number : sections) {
    const BlobSection& section = sections_.at(number);
    if (checksum({data_ + section.offset, section.bytes}) == checksums_[number]) continue;
    state_ = State::kFailed;
    ++tier_->failed_blobs_;
    log_message(LogLevel::kError, "host tier: the checksum of an image differs; it is dropped");
    return false;
  }
  return true;
}

std::shared_ptr<HostTier> HostTier::create(std::uint64_t cap_bytes) {
  return std::shared_ptr<HostTier>(new HostTier(cap_bytes));
}

bool HostTier::reserve(std::uint64_t bytes) noexcept {
  std::uint64_t used = used_bytes_.load();
  do {
    if (bytes > cap_bytes_ - used) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
  std::uint64_t peak = peak_bytes_.load();
  while (used + bytes > peak && !peak_bytes_.compare_exchange_weak(peak, used + bytes)) {
  }
  return true;
}

HostBlobPtr HostTier::allocate(std::uint64_t bytes, std::vector<BlobSection> sections) {
  if (!reserve(bytes)) return nullptr;
  std::byte* data = allocate_aligned(bytes);
  if (data == nullptr) {
    used_bytes_ -= bytes;
    return nullptr;
  }
  HostBlobPtr blob(new HostBlob(shared_from_this(), bytes, std::move(sections)));
  blob->data_ = data;
  return blob;
}

}  // namespace kvtrie
