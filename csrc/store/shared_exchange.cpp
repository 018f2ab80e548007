#include "store/shared_exchange.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/log.h"
#include "store/sealed_content.h"

namespace kvtrie {

// The fields that a key was made of, and that a header is compared with.
struct SharedExchange::Wanted {
  std::string key;
  std::size_t start = 0;              // where its own tokens begin
  std::size_t shared = 0;             // tokens of the path
  std::span<const std::byte> behind;  // and those behind them, in shared form
};

namespace {

std::size_t block_before(std::size_t end) { return (end - 1) / kSharedBlock; }

bool has_tokens(const SnapshotHeader& header, std::span<const std::byte> first, std::span<const std::byte> behind) {
  const std::vector<std::byte> tokens = token_bytes(header.tokens, header.media);
  return tokens.size() == first.size() + behind.size() && std::equal(first.begin(), first.end(), tokens.begin()) &&
         std::equal(behind.begin(), behind.end(), tokens.begin() + static_cast<std::ptrdiff_t>(first.size()));
}

std::vector<BlobSection> sections_of(const SnapshotImage& image) {
  std::vector<BlobSection> sections;
  std::uint64_t at = 0;
  for (const SnapshotSection& section : image.sections) {
    sections.push_back({at, section.bytes});
    at += section.bytes;
  }
  return sections;
}

// Null when a section is not what was written.
BlobPtr verified(HostMemoryPtr memory, const SnapshotImage& image) {
  std::vector<BlobSection> sections = sections_of(image);
  std::vector<std::uint64_t> checksums;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    checksums.push_back(image.sections[i].checksum);
    if (checksum({memory->data() + sections[i].offset, sections[i].bytes}) != checksums.back()) return nullptr;
  }
  return Blob::received(std::move(memory), std::move(sections), std::move(checksums));
}

// Takes a snapshot apart as it arrives: the header into a buffer, the images into memory of their own.
class Receiver {
 public:
  using Check = std::function<SnapshotFault(const SnapshotHeader&)>;
  Receiver(const std::shared_ptr<ByteBudget>& budget, const SharedExchange::MakeRoom& make_room, Check check)
      : budget_(budget), make_room_(make_room), check_(std::move(check)) {}

  bool take(std::uint64_t total, std::span<const std::byte> chunk) {
    if (begun_) return fill(chunk);
    beginning_.insert(beginning_.end(), chunk.begin(), chunk.end());
    if (beginning_.size() < needed_) return true;
    DecodedSnapshot decoded = decode_header(beginning_, total);
    if (decoded.fault == SnapshotFault::kTruncated && decoded.needed > beginning_.size()) {
      needed_ = decoded.needed;
      return true;
    }
    return begin(std::move(decoded)) && fill(std::span(beginning_).subspan(images_begin_));
  }

  // Once all bytes were taken. Anything but kNone: it is not to be used.
  SnapshotFault finish(ReceivedSnapshot& into) {
    if (fault_ != SnapshotFault::kNone) return fault_;
    if (!begun_ || image_ != memory_.size()) return SnapshotFault::kTruncated;
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      BlobPtr blob = verified(std::move(memory_[i]), header_.images[i]);
      if (blob == nullptr) return SnapshotFault::kChecksum;
      into.images.push_back(std::move(blob));
    }
    into.header = std::move(header_);
    return SnapshotFault::kNone;
  }

  SnapshotFault fault() const noexcept { return fault_; }

 private:
  bool begin(DecodedSnapshot decoded) {
    fault_ = decoded.fault == SnapshotFault::kNone ? check_(decoded.header) : decoded.fault;
    if (fault_ != SnapshotFault::kNone) return false;
    std::uint64_t bytes = 0;  // the decoder allows no sum that overflows
    for (const SnapshotImage& image : decoded.header.images) bytes += image.bytes();
    if (make_room_ && !make_room_(bytes)) return false;
    for (const SnapshotImage& image : decoded.header.images) {
      memory_.push_back(HostMemory::allocate(budget_, image.bytes()));
      if (memory_.back() == nullptr) return false;
    }
    header_ = std::move(decoded.header);
    images_begin_ = decoded.images_begin;
    begun_ = true;
    skip_complete();
    return true;
  }

  bool fill(std::span<const std::byte> chunk) {
    while (!chunk.empty() && image_ < memory_.size()) {
      HostMemory& memory = *memory_[image_];
      const std::span<std::byte> free = std::span(memory.data(), memory.bytes()).subspan(at_);
      const std::size_t taken = std::min(free.size(), chunk.size());
      std::copy_n(chunk.begin(), taken, free.begin());
      chunk = chunk.subspan(taken);
      at_ += taken;
      skip_complete();
    }
    if (!chunk.empty()) fault_ = SnapshotFault::kSize;
    return chunk.empty();
  }

  void skip_complete() {
    while (image_ < memory_.size() && at_ == memory_[image_]->bytes()) ++image_, at_ = 0;
  }

  const std::shared_ptr<ByteBudget>& budget_;
  const SharedExchange::MakeRoom& make_room_;
  const Check check_;
  std::vector<std::byte> beginning_;  // until the header is complete
  std::uint64_t needed_ = 0, images_begin_ = 0;
  bool begun_ = false;
  SnapshotFault fault_ = SnapshotFault::kNone;
  SnapshotHeader header_;
  std::vector<HostMemoryPtr> memory_;
  std::size_t image_ = 0, at_ = 0;  // where the next byte goes
};

SnapshotFault check_scope(const SnapshotHeader& header, const SharedScope& scope) {
  if (header.fingerprint != scope.fingerprint) return SnapshotFault::kFingerprint;
  if (header.name_space != scope.name_space) return SnapshotFault::kNamespace;
  return header.caches == scope.caches ? SnapshotFault::kNone : SnapshotFault::kLayout;
}

}  // namespace

// An eighth more is for sealing, which adds a 500th, and for 16 bytes of each section in the header.
std::uint64_t most_of_block(const SharedPath& path, std::size_t block, std::uint64_t cell_bytes) {
  constexpr std::uint64_t kRest = 4096, kOfCache = 512, kLongestEscape = 6;
  const SharedScope& scope = path.scope();
  std::uint64_t bytes = kRest + cell_bytes + 4 * block * kSharedBlock;
  for (const SnapshotCache& cache : scope.caches) bytes += kOfCache + 8 * cache.shape.size();
  return bytes + bytes / 8 + (1 + kLongestEscape) * (scope.fingerprint.size() + scope.name_space.size());
}

std::uint64_t most_of_index() noexcept { return kMaxIndexBytes + kMaxIndexBytes / 64 + 1024; }

// ---- reading
// ---------------------------------------------------------------------------------------------------------

// `fault`: why it cannot be opened; kNone where it can, or nothing is sealed.
SharedAnswer SharedExchange::get(const SharedPath& path, const std::string& key, const SharedTier::Sink& sink,
                                 SnapshotFault& fault, const CallTime& time, AskedValue* asked) const {
  if (path.key() == nullptr) return tier_->get(key, sink, time, asked);
  Unsealer content(*path.key(), key);
  const SharedAnswer answer = tier_->get(
      key, [&](std::uint64_t total, std::span<const std::byte> chunk) { return content.take(total, chunk, sink); },
      time, asked);
  fault = content.fault();
  return answer;
}

ReceivedSnapshot SharedExchange::receive(const SharedPath& path, const Wanted& wanted, const CallTime& time,
                                         AskedValue* asked) const {
  Receiver receiver(budget_, make_room_, [&](const SnapshotHeader& header) {
    if (const SnapshotFault fault = check_scope(header, path.scope()); fault != SnapshotFault::kNone) return fault;
    const bool right = header.start == static_cast<std::int64_t>(wanted.start) &&
                       has_tokens(header, path.bytes(0, wanted.shared), wanted.behind);
    return right ? SnapshotFault::kNone : SnapshotFault::kTokens;
  });
  ReceivedSnapshot received;
  SnapshotFault fault = SnapshotFault::kNone;
  received.answer = get(
      path, wanted.key,
      [&](std::uint64_t total, std::span<const std::byte> chunk) { return receiver.take(total, chunk); }, fault, time,
      asked);
  if (fault == SnapshotFault::kNone) fault = receiver.fault();
  if (received.answer == SharedAnswer::kHit && fault == SnapshotFault::kNone) fault = receiver.finish(received);
  if (fault == SnapshotFault::kNone) return received;
  tier_->refuse(wanted.key, fault, time.now);
  return {SharedAnswer::kWrong, {}, {}};
}

std::vector<AskedValue> SharedExchange::ask_blocks(const SharedPath& path, std::size_t first, std::size_t count,
                                                   std::uint64_t most, const CallTime& time) const {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back(path.block_key(first + i));
  return tier_->ask(keys, most, time);
}

std::vector<AskedValue> SharedExchange::ask_indices(const SharedPath& path, std::size_t first, std::size_t count,
                                                    std::uint64_t most, const CallTime& time) const {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back(path.index_key(first + i));
  return tier_->ask(keys, most, time);
}

ReceivedSnapshot SharedExchange::get_block(const SharedPath& path, std::size_t block, const CallTime& time,
                                           AskedValue* asked) const {
  return receive(path, {path.block_key(block), (block - 1) * kSharedBlock, block * kSharedBlock, {}}, time, asked);
}

ReceivedSnapshot SharedExchange::get_tail(const SharedPath& path, std::size_t end, const CallTime& time) const {
  return receive(path, {path.tail_key(end), block_before(end) * kSharedBlock, end, {}}, time);
}

ReceivedSnapshot SharedExchange::get_cells(const SharedPath& path, std::size_t block, const Continuation& found,
                                           const CallTime& time) const {
  const bool whole = count_tokens(found.tokens) == kSharedBlock;
  if (!whole) return get_point(path, block, found, time);
  const std::size_t start = block * kSharedBlock;
  return receive(path, {path.key_behind(SharedKind::kBlock, block, found.tokens), start, start, found.tokens}, time);
}

ReceivedSnapshot SharedExchange::get_point(const SharedPath& path, std::size_t block, const Continuation& found,
                                           const CallTime& time) const {
  const std::size_t start = block * kSharedBlock;
  return receive(path, {path.key_behind(SharedKind::kTail, block, found.tokens), start, start, found.tokens}, time);
}

SharedIndex SharedExchange::get_index(const SharedPath& path, std::size_t block, const CallTime& time,
                                      AskedValue* asked) const {
  const std::string key = path.index_key(block);
  std::vector<std::byte> bytes;
  const auto collect = [&](std::uint64_t, std::span<const std::byte> chunk) {
    bytes.insert(bytes.end(), chunk.begin(), chunk.end());
    return bytes.size() <= kMaxIndexBytes;
  };
  SnapshotFault fault = SnapshotFault::kNone;
  const SharedAnswer answer = get(path, key, collect, fault, time, asked);
  if (answer == SharedAnswer::kStopped && fault == SnapshotFault::kNone) fault = SnapshotFault::kSize;
  if (fault != SnapshotFault::kNone) tier_->refuse(key, fault, time.now);
  if (answer != SharedAnswer::kHit) return {};
  DecodedIndex decoded = decode_index(bytes);
  if (decoded.fault != SnapshotFault::kNone) tier_->refuse(key, decoded.fault, time.now);
  return std::move(decoded.index);
}

// ---- writing
// ---------------------------------------------------------------------------------------------------------

bool SharedExchange::put(const SharedPath& path, const std::string& key, Buffers content, double now) const {
  if (path.key() == nullptr) return tier_->put(key, content, now);
  BufferSource plain(content, total_bytes(content));
  Sealer sealed(*path.scope().keys, *path.key(), key, plain);
  return tier_->put(key, sealed, now);
}

bool SharedExchange::send(const SharedPath& path, const std::string& key, const SnapshotHeader& header, Buffers images,
                          double now) const {
  const std::vector<std::byte> beginning = encode_header(header);
  std::vector<std::span<const std::byte>> buffers{beginning};
  buffers.insert(buffers.end(), images.begin(), images.end());
  return put(path, key, buffers, now);
}

bool SharedExchange::put_block(const SharedPath& path, std::size_t block, const SnapshotHeader& header, Buffers images,
                               double now) const {
  return send(path, path.block_key(block), header, images, now);
}

bool SharedExchange::put_tail(const SharedPath& path, std::size_t end, const SnapshotHeader& header, Buffers images,
                              double now) const {
  return send(path, path.tail_key(end), header, images, now);
}

bool SharedExchange::announce(const SharedPath& path, std::size_t end, bool cells, bool point, double now) const {
  ensure(end > 0 && (cells || point), "shared store", "something ends there");
  const std::size_t block = block_before(end);
  const std::span<const std::byte> tokens = path.bytes(block * kSharedBlock, end);
  SharedIndex index = get_index(path, block, now);
  merge(index, {{tokens.begin(), tokens.end()}, cells, point});
  const std::vector<std::byte> bytes = encode_index(index);
  const std::span<const std::byte> content(bytes);
  return put(path, path.index_key(block), {&content, 1}, now);
}

}  // namespace kvtrie
