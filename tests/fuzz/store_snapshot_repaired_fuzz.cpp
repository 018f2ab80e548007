// Fields of a snapshot's header behind a right magic, length, JSON and checksum, so that what parses them is reached.
//
// Holds to the same as store_snapshot; and no fault is one of what was repaired.
//
// Input: [2: how much is at hand at first][1: point][8: bytes of the file beyond what the fields declare][fields].
#include "fuzz_bytes.h"
#include "naive_snapshot.h"
#include "snapshot_promises.h"

namespace kvtrie::fuzz {
namespace {

void decode_repaired(Input input) {
  Bytes from(input);
  const std::size_t cut = from.number<std::uint16_t>();
  const std::uint32_t point = from.number<std::uint8_t>();
  const auto beyond = from.number<std::uint64_t>();
  const NaiveSnapshot framed(point, from.take(from.size()));
  const std::uint64_t total = framed.bytes().size() + framed.images() + beyond;  // may wrap: any number will do
  const DecodedSnapshot decoded = expect_promises(framed.bytes(), total, cut);
  const SnapshotFault fault = decoded.fault;
  expect(fault != SnapshotFault::kMagic && fault != SnapshotFault::kVersion, "repaired, but ", name_of(fault));
  expect(fault != SnapshotFault::kChecksum || total < framed.bytes().size(), "repaired, but the checksum is wrong");
}

const Registration registered_repaired("store_snapshot_repaired", decode_repaired);

}  // namespace
}  // namespace kvtrie::fuzz
