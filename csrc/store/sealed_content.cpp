#include "store/sealed_content.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/little_endian.h"

namespace kvtrie {
namespace {

constexpr std::string_view kSealMagic("KVSEAL\0\1", 8);
constexpr std::size_t kSealVersionAt = 8, kRecordAt = 12, kContentAt = 16, kIdAt = 24, kSaltAt = 32, kMaskedAt = 64;
constexpr std::uint64_t kLeastRecord = 1 << 10, kMostRecord = 1 << 20, kMostContent = std::uint64_t{1} << 62;
constexpr std::size_t kTag = Aead::kTagBytes;

Aead::Nonce nonce_of(const SealedLayout& layout, std::uint64_t record) noexcept {
  Aead::Nonce nonce;
  store_little_endian(record, nonce.data());
  store_little_endian(std::uint32_t{record + 1 == layout.records()}, nonce.data() + sizeof(record));
  return nonce;
}

template <std::size_t N>
void copy_field(std::span<const std::byte> from, std::size_t at, std::array<std::byte, N>& into) noexcept {
  std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(at), N, into.begin());
}

std::array<std::byte, kSealedHeadBytes> encode_head(const SealedHead& head) noexcept {
  std::array<std::byte, kSealedHeadBytes> bytes{};
  std::memcpy(bytes.data(), kSealMagic.data(), kSealMagic.size());
  store_little_endian(kSealVersion, bytes.data() + kSealVersionAt);
  store_little_endian(static_cast<std::uint32_t>(head.layout.record), bytes.data() + kRecordAt);
  store_little_endian(head.layout.content, bytes.data() + kContentAt);
  std::copy(head.id.begin(), head.id.end(), bytes.begin() + kIdAt);
  std::copy(head.salt.begin(), head.salt.end(), bytes.begin() + kSaltAt);
  std::copy(head.masked_scope.begin(), head.masked_scope.end(), bytes.begin() + kMaskedAt);
  return bytes;
}

SecretKey content_key_of(const NamespaceKey& key, const SealedHead& head, std::string_view place) {
  return key.content_key(head.salt, encode_head(head), place);
}

}  // namespace

bool looks_sealed(std::span<const std::byte> beginning) noexcept {
  return beginning.size() >= kSealMagic.size() &&
         std::memcmp(beginning.data(), kSealMagic.data(), kSealMagic.size()) == 0;
}

SnapshotFault decode_sealed_head(std::span<const std::byte> beginning, std::uint64_t total, SealedHead& head) noexcept {
  if (beginning.size() >= kSealMagic.size() && !looks_sealed(beginning)) return SnapshotFault::kMagic;
  if (beginning.size() < kSealedHeadBytes || total < kSealedHeadBytes) return SnapshotFault::kTruncated;
  if (load_little_endian<std::uint32_t>(beginning.data() + kSealVersionAt) != kSealVersion)
    return SnapshotFault::kVersion;
  head.layout.record = load_little_endian<std::uint32_t>(beginning.data() + kRecordAt);
  head.layout.content = load_little_endian<std::uint64_t>(beginning.data() + kContentAt);
  const std::uint64_t record = head.layout.record, content = head.layout.content;
  if (!std::has_single_bit(record) || record < kLeastRecord || record > kMostRecord) return SnapshotFault::kSize;
  if (content == 0 || content > kMostContent) return SnapshotFault::kSize;
  if (total != head.layout.total()) {
    return total < head.layout.total() ? SnapshotFault::kTruncated : SnapshotFault::kSize;
  }
  copy_field(beginning, kIdAt, head.id);
  copy_field(beginning, kSaltAt, head.salt);
  copy_field(beginning, kMaskedAt, head.masked_scope);
  return SnapshotFault::kNone;
}

SnapshotFault read_sealed_head(File& file, std::uint64_t total, SealedHead& head) {
  std::array<std::byte, kSealedHeadBytes> beginning{};
  const auto seen = std::span(beginning).first(std::min<std::uint64_t>(total, beginning.size()));
  if (file.read_at(0, seen) != 0) return SnapshotFault::kIo;
  return decode_sealed_head(seen, total, head);
}

// ---- sealing --------------------------------------------------------------------------------------------------------

Sealer::Sealer(const KeyRing& ring, const NamespaceKey& key, std::string_view place, ContentSource& content)
    : content_(content), layout_{content.bytes()} {
  ensure(layout_.content > 0, "seal", "there is a content");
  SealedHead head{layout_, key.id(), {}, {}};
  if (!ring.random(head.salt)) {
    fail(ErrorKind::kNotSupported, "seal", "random: got nothing from the source of random numbers, allowed ",
         head.salt.size(), " bytes");
  }
  head.masked_scope = key.masked_scope(head.salt);
  const std::uint64_t most = std::min<std::uint64_t>(kSealedBatch, layout_.records()) * (layout_.record + kTag);
  batch_.resize(std::max<std::uint64_t>(most, kSealedHeadBytes));
  const auto encoded = encode_head(head);
  std::copy(encoded.begin(), encoded.end(), batch_.begin());
  aead_ = std::make_unique<Aead>(content_key_of(key, head, place));
  ready_ = std::span(batch_).first(kSealedHeadBytes);
}

// In place, where the content was copied to.
bool Sealer::seal_batch() noexcept {
  std::size_t at = 0;
  for (std::size_t i = 0; i < kSealedBatch && record_ < layout_.records(); ++i, ++record_) {
    const std::uint64_t bytes = layout_.bytes_of(record_);
    const std::span<std::byte> text = std::span(batch_).subspan(at, bytes);
    const std::span<std::byte, kTag> tag(batch_.data() + at + bytes, kTag);
    if (!copy_next(content_, text) || !aead_->seal(nonce_of(layout_, record_), text, tag)) {
      wipe(batch_);
      return false;
    }
    at += bytes + kTag;
  }
  ready_ = std::span(batch_).first(at);
  return true;
}

std::span<const std::byte> Sealer::next(std::uint64_t most) noexcept {
  if (ready_.empty() && !failed_ && record_ < layout_.records()) failed_ = !seal_batch();
  const std::span<const std::byte> taken = ready_.first(std::min<std::uint64_t>(ready_.size(), most));
  ready_ = ready_.subspan(taken.size());
  return taken;
}

// ---- opening what arrives -------------------------------------------------------------------------------------------

bool Unsealer::begin(std::uint64_t total) {
  fault_ = decode_sealed_head(waiting_, total, head_);
  if (fault_ == SnapshotFault::kMagic) fault_ = SnapshotFault::kSealed;
  if (fault_ == SnapshotFault::kNone && head_.id != key_.id()) fault_ = SnapshotFault::kKey;
  if (fault_ != SnapshotFault::kNone) return false;
  aead_ = std::make_unique<Aead>(content_key_of(key_, head_, place_));
  waiting_.clear();
  waiting_.reserve(head_.layout.bytes_of(0) + kTag);
  return true;
}

bool Unsealer::open_record(const Sink& sink) {
  const std::span<std::byte> text = std::span(waiting_).first(waiting_.size() - kTag);
  const std::span<const std::byte, kTag> tag(waiting_.data() + text.size(), kTag);
  if (!aead_->open(nonce_of(head_.layout, record_), text, tag, text)) {
    fault_ = SnapshotFault::kChecksum;
    return false;
  }
  ++record_;
  const bool more = sink(head_.layout.content, text);
  waiting_.clear();
  return more;
}

bool Unsealer::take(std::uint64_t total, std::span<const std::byte> bytes, const Sink& sink) {
  if (fault_ != SnapshotFault::kNone) return false;
  if (aead_ == nullptr && total < kSealedHeadBytes && waiting_.size() + bytes.size() >= total) {
    waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
    return begin(total);
  }
  while (!bytes.empty()) {
    if (aead_ != nullptr && record_ == head_.layout.records()) {
      fault_ = SnapshotFault::kSize;
      return false;
    }
    const std::uint64_t whole = aead_ == nullptr ? kSealedHeadBytes : head_.layout.bytes_of(record_) + kTag;
    const std::size_t taken = std::min<std::uint64_t>(whole - waiting_.size(), bytes.size());
    waiting_.insert(waiting_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(taken));
    bytes = bytes.subspan(taken);
    if (waiting_.size() < whole) break;
    if (!(aead_ == nullptr ? begin(total) : open_record(sink))) return false;
  }
  return true;
}

// ---- a sealed file --------------------------------------------------------------------------------------------------

SnapshotFault SealedFile::open(std::unique_ptr<File> file, std::uint64_t total, const KeyRing& ring,
                               std::string_view place, std::unique_ptr<SealedFile>& opened) {
  SealedHead head;
  if (const SnapshotFault fault = read_sealed_head(*file, total, head); fault != SnapshotFault::kNone) return fault;
  std::optional<NamespaceKey> key = ring.opening(head.id, head.salt, head.masked_scope);
  if (!key) return SnapshotFault::kKey;
  const SecretKey content = content_key_of(*key, head, place);
  opened.reset(new SealedFile(std::move(file), head, std::move(*key), content));
  return SnapshotFault::kNone;
}

int SealedFile::write_all(std::span<const std::byte>) { return EBADF; }

// Records [first, first + count), of which what lies in [offset, offset + into.size()) is wanted.
int SealedFile::read_batch(Aead& aead, std::uint64_t first, std::uint64_t count, std::span<std::byte> scratch,
                           std::uint64_t offset, std::span<std::byte> into) const {
  const SealedLayout& layout = head_.layout;
  const std::uint64_t last = first + count - 1, begin = layout.begin_of(first);
  scratch = scratch.first(layout.begin_of(last) + layout.bytes_of(last) + kTag - begin);
  if (const int error = file_->read_at(begin, scratch)) return error;
  for (std::uint64_t record = first; record <= last; ++record) {
    const std::uint64_t bytes = layout.bytes_of(record), text_begin = record * layout.record;
    const std::span<std::byte> text = scratch.subspan(layout.begin_of(record) - begin, bytes);
    const std::span<const std::byte, kTag> tag(text.data() + bytes, kTag);
    const std::uint64_t from = std::max(offset, text_begin);
    const std::uint64_t to = std::min(offset + into.size(), text_begin + bytes);
    const bool whole = to - from == bytes;
    const std::span<std::byte> target = whole ? into.subspan(from - offset, bytes) : text;
    if (!aead.open(nonce_of(layout, record), text, tag, target)) return EBADMSG;
    if (whole) continue;
    const std::span<const std::byte> wanted = text.subspan(from - text_begin, to - from);
    std::copy(wanted.begin(), wanted.end(), into.begin() + static_cast<std::ptrdiff_t>(from - offset));
  }
  return 0;
}

int SealedFile::read_at(std::uint64_t offset, std::span<std::byte> into) {
  const SealedLayout& layout = head_.layout;
  if (offset > layout.content || into.size() > layout.content - offset) return EIO;
  if (into.empty()) return 0;
  try {
    const std::uint64_t first = offset / layout.record, end = (offset + into.size() - 1) / layout.record + 1;
    const std::uint64_t at_once =
        std::max<std::uint64_t>(1, kSealedBatch * std::uint64_t{kSealedRecordBytes} / layout.record);
    const std::size_t bytes = std::min(at_once, end - first) * (layout.record + kTag);
    const std::unique_ptr<std::byte[]> scratch(new std::byte[bytes]);
    Aead aead(content_);
    for (std::uint64_t record = first; record < end; record += at_once) {
      const std::uint64_t count = std::min(at_once, end - record);
      if (const int error = read_batch(aead, record, count, {scratch.get(), bytes}, offset, into)) return error;
    }
    return 0;
  } catch (const std::exception&) {
    return ENOMEM;
  }
}

}  // namespace kvtrie
