// Sealed contents: what lies in files and values when keys are given. docs/keys.md has the layout and an example.
//
//     [head: 96][record 0][tag: 16][record 1][tag: 16] ... [last record, perhaps shorter][tag: 16]
//
//     head   0  magic "KVSEAL", 0, 1     16  bytes of the content (u64)     32  salt (32)
//            8  version (u32) = 1        24  id of the key (8)              64  scope of the namespace, masked (32)
//           12  bytes of a record (u32)                                     numbers are little-endian
//
// A record is AES-256-GCM under a key of this content alone, its nonce the number of the record and whether it is the
// last (the STREAM construction). The key is derived from the namespace's own, the salt, the whole head and the
// content's *place*: the name of its file, or the key of its value. So a record opens only as what it was, where it
// was: no bit of the head can be changed, and neither records nor contents can be swapped, cut off or put elsewhere.
// (Head and place are bound once, by the key, rather than with each record as additional data.)
//
// Any record can be read by itself. The plain text is a content as it would be without keys, and is checked as such.
//
// Memory. Writing and reading take one batch of records each, 64 KiB; a stream that arrives takes one record.
//
// Threads: a `Sealer` and an `Unsealer` belong to one thread; `SealedFile::read_at` is for several at once. Units:
// bytes. Errors: std::bad_alloc; everything else is a fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/aead.h"
#include "store/content_source.h"
#include "store/file_system.h"
#include "store/key_ring.h"
#include "store/snapshot_format.h"

namespace kvtrie {

inline constexpr std::uint32_t kSealVersion = 1;
inline constexpr std::size_t kSealedHeadBytes = 96;
inline constexpr std::uint32_t kSealedRecordBytes = 16384;  // what is written; read is any power of two, 2^10 to 2^20
inline constexpr std::size_t kSealedBatch = 4;              // records that are read or written at once

bool looks_sealed(std::span<const std::byte> beginning) noexcept;

// Where the records of a content lie. REQUIRES: content > 0.
struct SealedLayout {
  std::uint64_t content = 0;
  std::uint64_t record = kSealedRecordBytes;

  std::uint64_t records() const noexcept { return (content - 1) / record + 1; }
  std::uint64_t begin_of(std::uint64_t number) const noexcept {
    return kSealedHeadBytes + number * (record + Aead::kTagBytes);
  }
  std::uint64_t bytes_of(std::uint64_t number) const noexcept {  // without its tag
    return number + 1 < records() ? record : content - number * record;
  }
  std::uint64_t total() const noexcept {
    return kSealedHeadBytes + content + records() * std::uint64_t{Aead::kTagBytes};
  }
};

struct SealedHead {
  SealedLayout layout;
  KeyId id{};
  SealSalt salt{};
  Digest masked_scope{};
};
// Of a content that takes `total` bytes, sealed. Faults: kTruncated, kMagic, kVersion, kSize.
SnapshotFault decode_sealed_head(std::span<const std::byte> beginning, std::uint64_t total, SealedHead& head) noexcept;
// The same of a file of `total` bytes, or kIo.
SnapshotFault read_sealed_head(File& file, std::uint64_t total, SealedHead& head);

// Seals a content as it goes. Throws kNotSupported when there are no random numbers.
class Sealer final : public ContentSource {
 public:
  // `content` outlives this and is not empty.
  Sealer(const KeyRing& ring, const NamespaceKey& key, std::string_view place, ContentSource& content);
  std::uint64_t bytes() const noexcept override { return layout_.total(); }
  std::span<const std::byte> next(std::uint64_t most) noexcept override;

 private:
  bool seal_batch() noexcept;
  ContentSource& content_;
  const SealedLayout layout_;
  std::vector<std::byte> batch_;  // the head, then whole records
  std::unique_ptr<Aead> aead_;
  std::span<const std::byte> ready_;  // of the batch: not taken yet
  std::uint64_t record_ = 0;          // the next one
  bool failed_ = false;
};

// A sealed content that arrives in order.
class Unsealer {
 public:
  using Sink = std::function<bool(std::uint64_t content, std::span<const std::byte> bytes)>;  // false: no more

  Unsealer(NamespaceKey key, std::string_view place) : key_(std::move(key)), place_(place) {}
  // Takes the next of `total` bytes, and gives what they hold, opened, to `sink`. False: it wants no more, or a fault.
  bool take(std::uint64_t total, std::span<const std::byte> bytes, const Sink& sink);
  SnapshotFault fault() const noexcept { return fault_; }  // kSealed: not sealed; kKey: not with this key

 private:
  bool begin(std::uint64_t total);
  bool open_record(const Sink& sink);
  const NamespaceKey key_;
  const std::string place_;
  SealedHead head_;
  std::unique_ptr<Aead> aead_;      // null: the head is not complete yet
  std::vector<std::byte> waiting_;  // of the head, then of the record that is not complete yet
  std::uint64_t record_ = 0;
  SnapshotFault fault_ = SnapshotFault::kNone;
};

// A file with a sealed content, as if that were the file.
class SealedFile final : public File {
 public:
  // Takes over `file`, of `total` bytes, which lies at `place`. Faults: of its head, kIo, kKey.
  static SnapshotFault open(std::unique_ptr<File> file, std::uint64_t total, const KeyRing& ring,
                            std::string_view place, std::unique_ptr<SealedFile>& opened);

  std::uint64_t content_bytes() const noexcept { return head_.layout.content; }
  const NamespaceKey& key() const noexcept { return key_; }

  int read_at(std::uint64_t offset, std::span<std::byte> into) override;  // EBADMSG: not what was sealed
  int info(FileInfo& info) override { return file_->info(info); }
  int write_all(std::span<const std::byte>) override;  // EBADF
  int sync() override { return file_->sync(); }
  int close() override { return file_->close(); }

 private:
  SealedFile(std::unique_ptr<File> file, const SealedHead& head, NamespaceKey key, const SecretKey& content)
      : file_(std::move(file)), head_(head), key_(std::move(key)), content_(content) {}
  int read_batch(Aead& aead, std::uint64_t first, std::uint64_t count, std::span<std::byte> scratch,
                 std::uint64_t offset, std::span<std::byte> into) const;

  const std::unique_ptr<File> file_;
  const SealedHead head_;
  const NamespaceKey key_;
  const SecretKey content_;
};

}  // namespace kvtrie
