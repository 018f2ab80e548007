// Bytes that anybody may have left in a folder or a store, decoded as a snapshot.
//
// Holds to: no crash, no memory beyond what the bytes warrant; a fault leaves no header; what is accepted is encoded to
// the same bytes again; a reader that comes with what it was asked for is done after four calls.
//
// Input: [2: how much is at hand at first][8: bytes of the file behind the content][content].
#include <limits>

#include "fuzz_bytes.h"
#include "snapshot_promises.h"

namespace kvtrie::fuzz {
namespace {

void decode_anything(Input input) {
  Bytes from(input);
  const std::size_t cut = from.number<std::uint16_t>();
  const auto more = from.number<std::uint64_t>();
  const Input content = from.take(from.size());
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t total = more > kMost - content.size() ? kMost : content.size() + more;
  expect_promises(content, total, cut);
  expect_promises(content, std::min<std::uint64_t>(cut, content.size()), cut);  // a file that was cut short
}

const Registration registered_snapshot("store_snapshot", decode_anything);

}  // namespace
}  // namespace kvtrie::fuzz
