#include "store/blob.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/huge_pages.h"
#include "base/log.h"
#include "base/parallel.h"

namespace kvtrie {
namespace {

constexpr std::size_t kBlobAlignment = 64;

std::byte* allocate_aligned(std::uint64_t bytes) {
  if (bytes > std::numeric_limits<std::uint64_t>::max() - kBlobAlignment) return nullptr;
  const std::uint64_t rounded = (bytes + kBlobAlignment - 1) / kBlobAlignment * kBlobAlignment;
  return static_cast<std::byte*>(std::aligned_alloc(kBlobAlignment, rounded == 0 ? kBlobAlignment : rounded));
}

// Of bytes that are reserved.
std::byte* take_memory(ByteBudget& budget, std::uint64_t bytes) {
  if (bytes < SpareMemory::kSmallest) return allocate_aligned(bytes);
  std::byte* spare = budget.take_spare(bytes);
  return spare != nullptr ? spare : map_huge_pages(bytes);
}

void give_memory(ByteBudget& budget, std::byte* data, std::uint64_t bytes) noexcept {
  if (bytes < SpareMemory::kSmallest) std::free(data);
  budget.release(bytes);
  if (bytes >= SpareMemory::kSmallest) budget.keep_spare(data, bytes);
}

std::uint64_t total(const std::vector<BlobSection>& sections) {
  std::uint64_t bytes = 0;
  for (const BlobSection& section : sections) bytes += section.bytes;
  return bytes;
}

}  // namespace

HostMemoryPtr HostMemory::allocate(const std::shared_ptr<ByteBudget>& budget, std::uint64_t bytes) {
  if (!budget->reserve(bytes)) return nullptr;
  std::byte* data = take_memory(*budget, bytes);
  if (data == nullptr) {
    budget->release(bytes);
    return nullptr;
  }
  HostMemory* const memory = new (std::nothrow) HostMemory(budget, data, bytes);
  if (memory == nullptr) {
    give_memory(*budget, data, bytes);
    return nullptr;
  }
  return HostMemoryPtr(memory);
}

HostMemory::~HostMemory() { give_memory(*budget_, data_, bytes_); }

BlobPtr Blob::allocate(const std::shared_ptr<ByteBudget>& budget, std::uint64_t bytes,
                       std::vector<BlobSection> sections) {
  HostMemoryPtr memory = HostMemory::allocate(budget, bytes);
  if (memory == nullptr) return nullptr;
  BlobPtr blob(new Blob(bytes, std::move(sections)));
  const MutexLock lock(blob->mutex_);
  blob->checksums_.resize(blob->sections_.size());
  blob->memory_ = std::move(memory);
  return blob;
}

BlobPtr Blob::in_file(std::vector<BlobSection> sections, std::vector<std::uint64_t> checksums,
                      std::shared_ptr<BlobSource> source, std::uint64_t offset) {
  ensure(sections.size() == checksums.size(), "blob", "one checksum for each section");
  const std::uint64_t bytes = total(sections);
  BlobPtr blob(new Blob(bytes, std::move(sections)));
  const MutexLock lock(blob->mutex_);
  blob->state_ = State::kSealed;
  blob->checksums_ = std::move(checksums);
  blob->source_ = std::move(source);
  blob->offset_ = offset;
  return blob;
}

BlobPtr Blob::received(HostMemoryPtr memory, std::vector<BlobSection> sections, std::vector<std::uint64_t> checksums) {
  ensure(sections.size() == checksums.size(), "blob", "one checksum for each section");
  ensure(total(sections) == memory->bytes(), "blob", "the sections cover the memory");
  BlobPtr blob(new Blob(memory->bytes(), std::move(sections)));
  const MutexLock lock(blob->mutex_);
  blob->state_ = State::kSealed;
  blob->checksums_ = std::move(checksums);
  blob->memory_ = std::move(memory);
  return blob;
}

Blob::State Blob::state() const {
  const MutexLock lock(mutex_);
  return state_;
}

std::vector<std::uint64_t> Blob::checksums() const {
  const MutexLock lock(mutex_);
  return state_ == State::kSealed ? checksums_ : std::vector<std::uint64_t>();
}

HostMemoryPtr Blob::memory() const {
  const MutexLock lock(mutex_);
  return memory_;
}

bool Blob::saved() const {
  const MutexLock lock(mutex_);
  return source_ != nullptr;
}

std::shared_ptr<BlobSource> Blob::source() const {
  const MutexLock lock(mutex_);
  return source_;
}

void Blob::set_saved(std::shared_ptr<BlobSource> source, std::uint64_t offset) {
  const MutexLock lock(mutex_);
  source_ = std::move(source);
  offset_ = offset;
}

void Blob::forget_saved() {
  const MutexLock lock(mutex_);
  source_ = nullptr;
}

void Blob::drop_memory() {
  const MutexLock lock(mutex_);
  ensure(source_ != nullptr, "blob", "only a saved blob may lose its memory");
  memory_ = nullptr;
}

void Blob::expect(std::function<void()> wait) {
  const MutexLock lock(mutex_);
  wait_ = std::move(wait);
}

void Blob::fail_with(const char* what) noexcept {
  {
    const MutexLock lock(mutex_);
    state_ = State::kFailed;
  }
  try {
    log_message(LogLevel::kError, std::string("store: ") + what + "; the image is dropped");
  } catch (const std::exception&) {  // no memory for the message: the state says it
  }
}

void Blob::take_checksums(const HostMemory& memory, std::vector<std::uint64_t>& sums) const {
  const auto take = [&](std::size_t number) {
    const BlobSection& section = sections_[number];
    sums[number] = checksum({memory.data() + section.offset, section.bytes});
  };
  in_parallel(sections_.size(), bytes_, std::cref(take));  // a reference: a copy would want memory
}

void Blob::seal() noexcept {
  const MutexLock one(sealing_);
  std::function<void()> wait;
  HostMemoryPtr memory;
  std::vector<std::uint64_t> sums;
  {
    const MutexLock lock(mutex_);
    if (state_ != State::kFilling) return;
    wait.swap(wait_);
    memory = memory_;
    sums.swap(checksums_);
  }
  try {
    if (wait) wait();
    take_checksums(*memory, sums);
    const MutexLock lock(mutex_);
    checksums_ = std::move(sums);
    state_ = State::kSealed;
  } catch (const std::exception& error) {
    fail_with(error.what());
  } catch (...) {
    fail_with("an image did not arrive");
  }
}

const std::vector<std::uint64_t>* Blob::sealed_checksums() const {
  const MutexLock lock(mutex_);
  return state_ == State::kSealed ? &checksums_ : nullptr;
}

bool Blob::verify(std::span<const std::uint32_t> sections, const HostMemory& memory) {
  seal();
  const std::vector<std::uint64_t>* const sums = sealed_checksums();
  if (sums == nullptr) return false;
  std::atomic<bool> right{true};
  in_parallel(sections.size(), bytes_ / std::max<std::size_t>(1, sections_.size()) * sections.size(),
              [&](std::size_t i) {
                const BlobSection& section = sections_[sections[i]];
                if (checksum({memory.data() + section.offset, section.bytes}) != (*sums)[sections[i]]) right = false;
              });
  if (!right) fail_with("the checksum of an image in memory differs");
  return right;
}

// The checksum is taken while the section is still in the processor's cache.
bool Blob::read(std::span<const std::uint32_t> sections, std::span<std::byte> into) {
  const std::vector<std::uint64_t>* const sums = sealed_checksums();
  std::shared_ptr<BlobSource> source;
  std::uint64_t begin = 0;
  {
    const MutexLock lock(mutex_);
    if (sums == nullptr || source_ == nullptr) return false;
    source = source_;
    begin = offset_;
  }
  std::uint64_t at = 0;
  for (const std::uint32_t number : sections) {
    const BlobSection& section = sections_.at(number);
    ensure(section.bytes <= into.size() - at, "blob", "the target holds the sections");
    const std::span<std::byte> target = into.subspan(at, section.bytes);
    at += section.bytes;
    if (!source->read(begin + section.offset, target)) {
      fail_with("an image could not be read from its file");
      return false;
    }
    if (checksum(target) == (*sums)[number]) continue;
    fail_with("the checksum of an image in a file differs");
    return false;
  }
  return true;
}

}  // namespace kvtrie
