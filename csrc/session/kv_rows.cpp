#include "session/kv_rows.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace kvtrie {
namespace {

constexpr const char* kWhere = "session.kv";

// A negative or too large number is refused with what the layer has now.
KvRows range_of(std::int32_t layer, std::int32_t held_from, std::int32_t computed, std::optional<std::int32_t> start,
                std::optional<std::int32_t> stop) {
  const std::int32_t first = std::min(held_from, computed);
  const auto check = [&](const char* name, std::int32_t got, std::int32_t last) {
    require(first <= got && got <= last, kWhere, name, ": got ", got, ", allowed ", first, " to ", last,
            ", of which layer ", layer, " holds rows");
  };
  KvRows range;
  range.stop = stop.value_or(computed);
  check("stop", range.stop, computed);
  range.start = start.value_or(first);
  check("start", range.start, range.stop);
  return range;
}

}  // namespace

std::vector<KvRows> copy_rows_of(const CacheTable& caches, const Cursor& cursor, std::span<const std::int32_t> layers,
                                 std::optional<std::int32_t> start, std::optional<std::int32_t> stop,
                                 RowLayout layout) {
  std::vector<KvRows> all;
  all.reserve(layers.size());
  for (const std::int32_t layer : layers) {
    const std::size_t owner = caches.attention_number(layer, kWhere);
    const CausalCache& cache = *caches.attention[owner];
    const SequenceId sequence = cursor.sequences[owner];
    KvRows range = range_of(layer, cache.held_from(sequence), cursor.computed, start, stop);
    CausalCache::Rows copied = cache.rows(sequence, layer, range.start, range.stop, layout);
    range.k = std::move(copied.k), range.v = std::move(copied.v);
    all.push_back(std::move(range));
  }
  return all;
}

}  // namespace kvtrie
