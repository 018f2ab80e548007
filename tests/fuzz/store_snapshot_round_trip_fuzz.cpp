// Headers of snapshots made from bytes: encoded and decoded they are what they were.
//
// Holds to: decode(encode(x)) == x for every header that the rules allow. One that breaks a rule is refused by
// encoding, with kArgument, or it is one that the rules allow, too.
//
// Input: [1: whether it is spoilt][what snapshot_maker.h draws][what spoils it].
#include "fuzz_bytes.h"
#include "snapshot_maker.h"
#include "snapshot_promises.h"

namespace kvtrie::fuzz {
namespace {

void spoil(SnapshotHeader& header, Bytes& from) {
  const auto number = from.number<std::int32_t>();
  switch (from.below(9)) {
    case 0:
      header.start = number;
      break;
    case 1:
      header.tokens[from.below(header.tokens.size())] = number;
      break;
    case 2:
      header.point = static_cast<std::uint8_t>(number);
      break;
    case 3:
      header.media.push_back({number, from.number<std::int32_t>(), from.flag(), from.text(8)});
      break;
    case 4:
      header.caches.push_back({from.pick({SnapshotCache::Kind{0}, SnapshotCache::Kind{3}, SnapshotCache::Kind{1}}),
                               from.number<std::uint8_t>(),
                               {number}});
      break;
    case 5:
      header.images.push_back({static_cast<SnapshotImage::Role>(from.below(5)),
                               from.number<std::uint8_t>(),
                               number,
                               from.number<std::uint32_t>(),
                               {}});
      break;
    case 6:
      header.fingerprint.resize(4090 + from.below(12));
      break;
    case 7:
      if (!header.images.empty()) header.images.front().sections.push_back({from.number<std::uint64_t>(), 0});
      break;
    default:
      if (!header.caches.empty()) header.caches.front().shape = {number};
  }
}

void make_and_read_back(Input input) {
  Bytes from(input);
  const bool spoilt = from.flag();
  SnapshotHeader header = SnapshotMaker(from).make();
  if (spoilt) spoil(header, from);
  std::vector<std::byte> encoded;
  try {
    encoded = encode_header(header);
  } catch (const Error& error) {
    expect(spoilt, "a header that the rules allow: ", error.what());
    expect(error.kind() == ErrorKind::kArgument, "refused otherwise: ", error.what());
    return;
  }
  std::uint64_t total = encoded.size();
  for (const SnapshotImage& image : header.images) total += image.bytes();
  const DecodedSnapshot decoded = expect_promises(encoded, total, encoded.size() / 2);
  expect(decoded.fault == SnapshotFault::kNone, "read back: ", name_of(decoded.fault));
  expect(decoded.header == header, "another header was read back");
}

const Registration registered_round_trip("store_snapshot_round_trip", make_and_read_back);

}  // namespace
}  // namespace kvtrie::fuzz
