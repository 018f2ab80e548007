// A whole exchange on a store in which somebody else writes: values damaged, exchanged, cut, forged, gone, and calls
// that fail.
//
// Holds to: nothing throws; what is received is of the path that was asked for, and verified; unless values were forged
// (written with right digests by whoever can write to the store), it has the very bytes that were written. The budget
// is what it was; counters agree with each other.
//
// Input: [1: tokens of the path][1: room], then operations: [1: which] and what each takes.
#include <cstring>

#include "base/checksum.h"
#include "fuzz_bytes.h"
#include "naive_snapshot.h"
#include "store/shared_exchange.h"
#include "store_shared_helpers.h"

namespace kvtrie::fuzz {
namespace {

using testing::MapStore;
using testing::Tokens;
using Value = std::vector<std::byte>;
using Role = SnapshotImage::Role;

SnapshotImage image_in_sections(Role role, std::uint32_t cache, std::size_t first, std::size_t cells, Input bytes) {
  SnapshotImage image{role, cache, static_cast<std::int32_t>(first), static_cast<std::uint32_t>(cells), {}};
  for (std::size_t at = 0; at < bytes.size(); at += 200) {
    const Input section = bytes.subspan(at, std::min<std::size_t>(200, bytes.size() - at));
    image.sections.push_back({section.size(), checksum(section)});
  }
  return image;
}

struct Written {
  SnapshotHeader header;
  std::vector<Value> images;
};

class Exchange {
 public:
  explicit Exchange(Input input) : from_(input) {
    const auto length = static_cast<std::int32_t>(1 + from_.pick({0, 5, 255, 256, 300, 511, 520}));
    tokens_ = testing::range(0, length);
    budget_ = std::make_shared<ByteBudget>(from_.pick<std::uint64_t>({1 << 20, 0, 1000}));
    SharedOptions options = testing::small_values(2048);
    options.max_content = from_.pick<std::uint64_t>({1 << 20, 3000});
    tier_ = std::make_shared<SharedTier>(store_, options);
    exchange_ = std::make_unique<SharedExchange>(tier_, budget_);
    path_ = std::make_unique<SharedPath>(testing::scope(), tokens_, std::span<const SnapshotMedia>());
  }

  void play() {
    publish();
    for (int operations = 0; operations < 10 && !from_.empty(); ++operations) {
      meddle();
      now_ += static_cast<double>(from_.below(8));
      read_all();
      if (from_.below(4) == 0) publish();
    }
    expect(budget_->used() == 0, "memory is held: ", budget_->used());
    expect_counts(tier_->stats());
  }

 private:
  Written made_for(std::size_t end, bool point) const {
    Written made;
    const std::size_t start = (end - 1) / kSharedBlock * kSharedBlock;
    made.header.fingerprint = testing::scope().fingerprint;
    made.header.name_space = testing::scope().name_space;
    made.header.caches = testing::scope().caches;
    made.header.tokens.assign(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(end));
    made.header.start = static_cast<std::int32_t>(start);
    made.images.push_back(testing::pattern((end - start) * 10, static_cast<unsigned>(end)));
    made.header.images.push_back(image_in_sections(Role::kCells, 0, start, end - start, made.images[0]));
    if (!point) return made;
    made.header.point = 1;
    made.images.push_back(testing::pattern(333, static_cast<unsigned>(end)));
    made.header.images.push_back(image_in_sections(Role::kState, 1, 0, 0, made.images[1]));
    return made;
  }

  bool has_tail() const { return tokens_.size() % kSharedBlock != 0; }

  void publish() {
    for (std::size_t block = 1; block <= path_->blocks(); ++block) {
      const Written made = made_for(block * kSharedBlock, false);
      const std::vector<std::span<const std::byte>> images(made.images.begin(), made.images.end());
      exchange_->put_block(*path_, block, made.header, images, now_);
      exchange_->announce(*path_, block * kSharedBlock, true, false, now_);
    }
    if (!has_tail()) return;
    const Written made = made_for(tokens_.size(), true);
    const std::vector<std::span<const std::byte>> images(made.images.begin(), made.images.end());
    exchange_->put_tail(*path_, tokens_.size(), made.header, images, now_);
    exchange_->announce(*path_, tokens_.size(), true, true, now_);
  }

  void meddle() {
    const std::size_t what = from_.below(8);
    if (what == 0) return store_->fail_at(1 + static_cast<int>(from_.below(9)), from_.flag());
    if (what == 1) return store_->fail_at(0, false);
    if (store_->values.empty()) return;
    auto one = store_->values.begin(), other = one;
    std::advance(one, from_.below(store_->values.size()));
    std::advance(other, from_.below(store_->values.size()));
    switch (what) {
      case 2:
        store_->values.erase(one);
        return;
      case 3:
        one->second = other->second;
        return;
      case 4:
        return forge(one->first);
      case 5:
        one->second = copy_of(from_.take(from_.below(200)));
        return;
      default:
        damage(one->second, from_);
    }
  }

  // What whoever can write to the store may do: any content behind a right head.
  void forge(const std::string& key) {
    forged_ = true;
    Value content;
    switch (from_.below(3)) {
      case 0: {
        const NaiveSnapshot framed(from_.below(6) & 7, from_.take(from_.below(300)));
        content = framed.bytes();
        if (framed.images() < 2048) content.resize(content.size() + framed.images());
        break;
      }
      case 1: {
        Written made = made_for(1 + from_.below(tokens_.size()), from_.flag());
        const std::size_t what = from_.below(4);
        if (what == 1) damage(made.images.front(), from_);
        if (what == 2) made.header.images.front().sections.front().bytes = from_.number<std::uint16_t>();
        if (what == 3) made.header.tokens.front() += 1;
        content = encode_header(made.header);
        for (const Value& image : made.images) content.insert(content.end(), image.begin(), image.end());
        break;
      }
      default:
        content = copy_of(from_.take(from_.below(300)));
    }
    const std::span<const std::byte> buffer(content);
    if (from_.flag()) {
      tier_->put(key, {&buffer, 1}, now_);
    } else {
      store_->values[key] = encode_whole(key, {&buffer, 1});
    }
  }

  void read_all() {
    for (std::size_t block = 1; block <= path_->blocks(); ++block)
      expect_received(exchange_->get_block(*path_, block, now_), made_for(block * kSharedBlock, false));
    if (has_tail()) expect_received(exchange_->get_tail(*path_, tokens_.size(), now_), made_for(tokens_.size(), true));
    for (std::size_t block = 0; block <= path_->blocks(); ++block) read_behind(block);
  }

  void read_behind(std::size_t block) {
    const SharedIndex index = exchange_->get_index(*path_, block, now_);
    const std::size_t end = std::min(tokens_.size(), (block + 1) * kSharedBlock);
    const FoundContinuation found = find_continuation(index, path_->bytes(block * kSharedBlock, end));
    for (const Continuation* each : {found.cells, found.point}) {
      if (each == nullptr) continue;
      const ReceivedSnapshot received = each == found.cells ? exchange_->get_cells(*path_, block, *each, now_)
                                                            : exchange_->get_point(*path_, block, *each, now_);
      if (received.answer != SharedAnswer::kHit) continue;
      expect(forged_ || received.header.tokens.size() <= tokens_.size(), "more tokens than anybody wrote");
      if (!forged_) expect_received(received, made_for(received.header.tokens.size(), received.header.point != 0));
    }
  }

  void expect_received(const ReceivedSnapshot& received, const Written& wanted) {
    if (received.answer != SharedAnswer::kHit)
      return expect(received.images.empty() && received.header == SnapshotHeader{}, "something in spite of a miss");
    const SnapshotHeader& header = received.header;
    expect(header.fingerprint == wanted.header.fingerprint && header.name_space == wanted.header.name_space &&
               header.caches == wanted.header.caches && header.tokens == wanted.header.tokens &&
               header.start == wanted.header.start,
           "a snapshot of something else");
    expect(received.images.size() == header.images.size(), "images are missing");
    for (std::size_t i = 0; i < received.images.size(); ++i) expect_image(*received.images[i], header.images[i]);
    if (forged_) return;
    expect(header == wanted.header, "another header than was written");
    for (std::size_t i = 0; i < received.images.size(); ++i) {
      const HostMemoryPtr memory = received.images[i]->memory();
      expect(std::ranges::equal(std::span(memory->data(), memory->bytes()), wanted.images[i]), "other bytes");
    }
  }

  static void expect_image(Blob& blob, const SnapshotImage& image) {
    const HostMemoryPtr memory = blob.memory();
    expect(memory != nullptr && memory->bytes() == image.bytes(), "an image of another size");
    std::uint64_t at = 0;
    for (const SnapshotSection& section : image.sections) {
      expect(checksum({memory->data() + at, section.bytes}) == section.checksum, "a section that nobody verified");
      at += section.bytes;
    }
  }

  static void expect_counts(const SharedStats& stats) {
    expect(stats.gets == stats.hits + stats.misses, stats.gets, " questions, ", stats.hits, " hits, ", stats.misses,
           " misses");
  }

  Bytes from_;
  Tokens tokens_;
  std::shared_ptr<MapStore> store_ = std::make_shared<MapStore>();
  std::shared_ptr<ByteBudget> budget_;
  std::shared_ptr<SharedTier> tier_;
  std::unique_ptr<SharedExchange> exchange_;
  std::unique_ptr<SharedPath> path_;
  double now_ = 0;
  bool forged_ = false;
};

const Registration registered_shared("store_shared_tier", [](Input input) { Exchange(input).play(); });

}  // namespace
}  // namespace kvtrie::fuzz
