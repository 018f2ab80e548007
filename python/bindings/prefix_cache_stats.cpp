// The results of `PrefixCache.stats` and `nodes`, as Python objects.
#include "prefix_cache_stats.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "convert.h"
#include "gil.h"
#include "remote_store.h"

namespace kvtrie::binding {
namespace {

py::dict cache_stats(const CacheStats& stats) {
  py::dict result;
  result["capacity_cells"] = stats.capacity_cells;
  result["free_cells"] = stats.free_cells;
  result["reserved_cells"] = stats.reserved_cells;
  result["held_cells"] = stats.held_cells;
  result["pieces"] = stats.pieces;
  result["limit_cells"] = stats.limit_cells;
  result["bytes"] = stats.bytes;
  return result;
}

py::dict state_stats(const StateStats& stats) {
  py::dict result;
  result["capacity_slots"] = stats.capacity_slots;
  result["free_slots"] = stats.free_slots;
  result["limit_slots"] = stats.limit_slots;
  result["bytes"] = stats.bytes;
  return result;
}

py::dict disk_stats(const DiskStats& stats) {
  py::dict refused;
  for (std::size_t fault = 0; fault < stats.refused.size(); ++fault) {
    if (stats.refused[fault] > 0) refused[name_of(static_cast<SnapshotFault>(fault))] = stats.refused[fault];
  }
  py::dict result;
  const std::pair<const char*, std::uint64_t> numbers[] = {
      {"files", stats.files},
      {"bytes", stats.bytes},
      {"cap_bytes", stats.cap_bytes},
      {"peak_bytes", stats.peak_bytes},
      {"writes", stats.writes},
      {"written_bytes", stats.written_bytes},
      {"failed_writes", stats.failed_writes},
      {"reads", stats.reads},
      {"read_bytes", stats.read_bytes},
      {"failed_reads", stats.failed_reads},
      {"failed_removes", stats.failed_removes},
      {"dropped", stats.dropped},
      {"strays_removed", stats.strays_removed},
  };
  for (const auto& [name, number] : numbers) result[name] = number;
  result["refused"] = refused;
  result["writing"] = stats.writing;
  result["last_failure"] = stats.last_failure;
  return result;
}

py::dict store_stats(const StoreStats& stats) {
  py::dict result = stats_of(stats.tier);
  result["sent"] = stats.sent;
  result["unsent"] = stats.unsent;
  result["received"] = stats.received;
  result["received_bytes"] = stats.received_bytes;
  result["pending"] = stats.pending;
  result["not_worth"] = stats.not_worth;
  result["least_tokens"] = stats.least_tokens >= 0 ? py::object(py::int_(stats.least_tokens)) : py::none();
  return result;
}

}  // namespace

Typed<"dict[str, Any]"> stats_to_python(const PrefixCache& self) {
  const PrefixCacheStats now = without_gil([&] { return self.stats(); });
  py::list caches;
  for (const CacheStats& each : now.caches) caches.append(cache_stats(each));
  py::list recurrent;
  for (const StateStats& each : now.recurrent) recurrent.append(state_stats(each));
  py::dict result;
  result["caches"] = caches;
  result["recurrent"] = recurrent;
  const std::pair<const char*, std::uint64_t> numbers[] = {
      {"nodes", now.nodes},
      {"tokens", now.tokens},
      {"device_tokens", now.device_tokens},
      {"host_tokens", now.host_tokens},
      {"disk_tokens", now.disk_tokens},
      {"sessions", now.sessions},
      {"suffix_tokens", now.suffix_tokens},
      {"suffix_bytes", now.suffix_bytes},
      {"device_bytes", now.device_bytes},
      {"host_bytes", now.host_bytes},
      {"host_cap_bytes", now.host_cap_bytes},
      {"host_peak_bytes", now.host_peak_bytes},
      {"pending_writes", now.pending_writes},
      {"pending_bytes", now.pending_bytes},
      {"user_points", now.user_points},
      {"pins", now.pins},
      {"pinned_tokens", now.pinned_tokens},
      {"restore_points", now.restore_points},
      {"begins", now.begins},
      {"hits", now.hits},
      {"matched_tokens", now.matched_tokens},
      {"reused_tokens", now.reused_tokens},
      {"computed_tokens", now.computed_tokens},
      {"adopted_tokens", now.adopted_tokens},
      {"steps", now.steps},
      {"dropped_steps", now.dropped_steps},
      {"proposed_tokens", now.proposed_tokens},
      {"accepted_tokens", now.accepted_tokens},
      {"branches", now.branches},
      {"rewinds", now.rewinds},
      {"page_outs", now.page_outs},
      {"page_out_bytes", now.page_out_bytes},
      {"page_ins", now.page_ins},
      {"recomputed_instead", now.recomputed_instead},
      {"page_in_bytes", now.page_in_bytes},
      {"evicted_tokens", now.evicted_tokens},
      {"expired_tokens", now.expired_tokens},
      {"expired_pins", now.expired_pins},
      {"checksum_failures", now.checksum_failures},
      {"captures", now.captures},
      {"skipped_captures", now.skipped_captures},
      {"dropped_points", now.dropped_points},
      {"unusable_snapshots", now.unusable_snapshots},
      {"keyless_sessions", now.keyless_sessions},
  };
  for (const auto& [name, number] : numbers) result[name] = number;
  result["store"] = now.store ? py::object(store_stats(*now.store)) : py::none();
  result["seconds_per_token"] = now.seconds_per_token;
  result["seconds_per_decoded_token"] = now.seconds_per_decoded_token;
  py::dict per_byte;
  per_byte["host"] = now.host_seconds_per_byte;
  per_byte["disk"] = now.disk_seconds_per_byte;
  per_byte["store"] = now.store_seconds_per_byte;
  result["seconds_per_byte"] = per_byte;
  result["seconds_per_store_call"] = now.seconds_per_store_call;
  result["disk"] = now.disk ? py::object(disk_stats(*now.disk)) : py::none();
  return result;
}

// One tuple for each node, in pre-order, roots included; kvtrie._values.make_nodes makes objects of them.
Typed<"list[tuple[Any, ...]]"> node_tuples(const PrefixCache& self) {
  const std::vector<NodeInfo> infos = without_gil([&] { return self.nodes(); });
  py::list result;
  for (const NodeInfo& info : infos) {
    result.append(py::make_tuple(int32_array(info.tokens), info.start, info.end, info.parent, info.name_space,
                                 name_of(info.tier), info.bytes, info.age_seconds, info.user, info.pins, info.live,
                                 name_of(info.point)));
  }
  return result;
}

}  // namespace kvtrie::binding
