// One life of one process of a simulated day: a prefix cache over caches in host memory, with a model whose K, V and
// states name model, namespace, prefix, layer and position (kv_code.h). It computes, reads back and counts; everything
// that is not as it should be is a Violation.
//
// Freed cells and slots hold NaN. Queues work only when they are waited for, so that each life can be replayed.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/cell_image.h"
#include "coding_process.h"
#include "day_text.h"
#include "host_caches.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie::oracle::day {

struct DayModel {
  std::string fingerprint;
  test::Kinds kinds;

  std::uint64_t seed(const std::string& name_space) const { return seed_of(cat(fingerprint, "/", name_space)); }
};

// A path that is in files, all of it, with everything above it.
struct KeptPath {
  std::string name_space;
  Tokens keys;
  std::set<std::string> files;  // that it takes
};

class Server {
 public:
  // Calls of one life that succeeded, beside the cache's own counters.
  struct Calls {
    std::uint64_t begins = 0, hits = 0, matched = 0, reused = 0, steps = 0, computed = 0, branches = 0, rewinds = 0;
  };

  Server(const DayModel& model, PrefixCacheOptions options, Cell cells, Figures& figures)
      : model_(model), figures_(figures) {
    for (std::size_t i = 0; i < model.kinds.attention.size(); ++i) {
      const Visibility& sees = model.kinds.attention[i];
      attention_.push_back(test::host_cells(i, sees, sees.full() ? cells : cells / 2));
    }
    for (int i = 0; i < model.kinds.recurrent; ++i) {
      recurrent_.push_back(test::host_states(static_cast<std::size_t>(i), std::max(160u, cells / 64)));
      StateStore* store = &recurrent_.back()->store();
      recurrent_.back()->pool().on_free = [store](Slot slot) { store->fill(slot, 0xFF); };
    }
    for (int i = 0; i < model.kinds.blocks; ++i)
      blocks_.push_back(test::BlockCache::create(200 + i, test::kBlock, std::max(256u, cells / 8)));
    options.fingerprint = model.fingerprint;
    cache = PrefixCache::create(caches(), std::move(options));
    if (cache->state().writer != nullptr) cache->state().writer->only_when_waited_for();
    if (cache->state().exchange != nullptr) cache->state().exchange->only_when_waited_for();
  }

  const DayModel& model() const { return model_; }
  bool dense() const { return model_.kinds.dense(); }
  bool has_states() const { return !recurrent_.empty() || !blocks_.empty(); }
  PrefixCacheState& state() { return cache->state(); }
  CacheSet caches() const {
    CacheSet set{attention_, {recurrent_.begin(), recurrent_.end()}};
    set.states.insert(set.states.end(), blocks_.begin(), blocks_.end());
    return set;
  }
  std::uint64_t bytes_per_token() const {
    std::uint64_t bytes = 0;
    for (const auto& each : attention_) bytes += each->shape().bytes_per_cell();
    return std::max<std::uint64_t>(bytes, 16);
  }
  Cell cells() const {  // that each cache may hold at least
    Cell least = std::numeric_limits<Cell>::max();
    for (const auto& each : attention_) least = std::min(least, each->limit());
    return least;
  }

  // --- computing -------------------------------------------------------------------------------------------------
  // All layers of the step, or the first `layers` of them. texts: of step.sessions().
  void compute(Step& step, const std::vector<const Text*>& texts, std::size_t layers = 1000) {
    const std::vector<std::int32_t> before = lengths_before(step, texts.size());
    for (std::size_t i = 0; i < attention_.size(); ++i) {
      for (const std::int32_t layer : attention_[i]->layers()) {
        if (layers-- == 0) return;
        put_rows(step, texts, *attention_[i], layer);
      }
    }
    for (const auto& each : recurrent_) {
      for (const std::int32_t layer : each->layers()) {
        if (layers-- == 0) return;
        put_states(step, texts, before, layer);
      }
    }
    for (const auto& each : blocks_) {
      if (layers-- == 0) return;
      std::vector<std::vector<std::uint64_t>> digests;
      for (const Text* text : texts) digests.push_back(text->hashes());
      step.write_states(each->layers().front(), [&](PointCache& blocks, LayerForward& forward) {
        static_cast<test::BlockCache&>(blocks).write(static_cast<test::BlockCache::Forward&>(forward), digests);
      });
    }
    keep(step.complete(), "every layer was put, but the step is not complete");
    ++calls.steps;
    calls.computed += step.tokens().size();
    figures_.computed += step.tokens().size();
  }

  // --- reading back ----------------------------------------------------------------------------------------------
  // Every cell that the session's next query sees, and its states, are those of its own tokens.
  void verify(const Session& session, const Text& text) {
    const std::int32_t length = session.length();
    const Cursor& cursor = PrefixCacheState::cursor_of(session);
    for (std::size_t i = 0; i < attention_.size(); ++i) {
      const CellSpans spans = attention_[i]->spans(cursor.sequences[i]);
      verify_reach(*attention_[i], spans, length);
      verify_cells(*attention_[i], spans, text.hashes());
    }
    if (length == 0 || !has_states()) return;
    const std::vector<HeldState> held = state().checkpointer.states_of(cursor);
    for (std::size_t i = 0; i < recurrent_.size(); ++i)
      verify_slot(*recurrent_[i], held[i].slot(), text.hashes(), length);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (!blocks_[i]->is_of(held[recurrent_.size() + i], text.hashes(), length))
        break_promise(Promise::kBytes, "a session has blocks of other tokens at ", length);
    }
  }
  // V of cells that a context shift moved from elsewhere: those of `hashes`, one for each position.
  void verify_values(const Session& session, const std::vector<std::uint64_t>& hashes) {
    for (std::size_t i = 0; i < attention_.size(); ++i)
      verify_cells(*attention_[i], attention_[i]->spans(PrefixCacheState::cursor_of(session).sequences[i]), hashes,
                   /*keys=*/false);
  }

  // All that the tree has, in every tier, but for what is known to be damaged.
  void audit(const std::set<std::string>& damaged_files, bool disk_is_well) {
    cache->state().trie.visit([&](Node& node) {
      if (node.is_root()) return;
      Text path(model_.seed(node.name_space()));
      path.append(tokens_of(path_tokens(&node)));
      const NodeState& own = state_of(&node);
      for (std::size_t i = 0; i < attention_.size(); ++i) {
        for (const SpanList& list : own.held[i].cells) verify_cells(*attention_[i], list.spans(), path.hashes());
        for (const BlobSlice& slice : own.held[i].slices)
          verify_slice(i, slice, path.hashes(), damaged_files, disk_is_well);
        if (!own.point().exists()) continue;
        if (own.point().copied()) verify_slice(i, own.point().copies[i], path.hashes(), damaged_files, disk_is_well);
        if (own.point().on_device) verify_cells(*attention_[i], own.point().held[i].cells().spans(), path.hashes());
      }
      if (!own.point().exists() || !own.point().on_device) return;
      for (std::size_t i = 0; i < recurrent_.size(); ++i)
        verify_slot(*recurrent_[i], state().caches.states_among(own.point().held)[i].slot(), path.hashes(), node.end());
      for (std::size_t i = 0; i < blocks_.size(); ++i) {
        if (!blocks_[i]->is_of(state().caches.states_among(own.point().held)[recurrent_.size() + i], path.hashes(),
                               node.end()))
          break_promise(Promise::kBytes, "a restore point has blocks of other tokens at ", node.end());
      }
    });
  }

  void check() {
    const std::vector<std::string> findings = cache->check();
    keep(findings.empty(), "check: ", findings.empty() ? "" : findings.front());
  }
  // The cache's own counters are what was called, and no tier is over its cap.
  void check_stats(std::uint64_t most_host) {
    const PrefixCacheStats stats = cache->stats();
    const auto same = [](std::uint64_t told, std::uint64_t counted, const char* what) {
      keep(told == counted, "stats: ", what, ": told ", told, ", counted ", counted);
    };
    same(stats.begins, calls.begins, "begins");
    same(stats.hits, calls.hits, "hits");
    same(stats.matched_tokens, calls.matched, "matched_tokens");
    same(stats.reused_tokens, calls.reused, "reused_tokens");
    same(stats.steps, calls.steps, "steps");
    same(stats.computed_tokens, calls.computed, "computed_tokens");
    same(stats.branches, calls.branches, "branches");
    same(stats.rewinds, calls.rewinds, "rewinds");
    same(stats.tokens, stats.device_tokens + stats.host_tokens + stats.disk_tokens, "tokens in all tiers");
    keep(stats.host_bytes <= stats.host_cap_bytes, "host tier at ", stats.host_bytes, " of ", stats.host_cap_bytes);
    keep(stats.host_peak_bytes <= most_host, "host tier was at ", stats.host_peak_bytes, " of ", most_host);
    if (stats.disk)
      keep(stats.disk->bytes <= stats.disk->cap_bytes, "disk tier at ", stats.disk->bytes, " of ",
           stats.disk->cap_bytes);
    check_units();
  }
  void check_units() const {
    for (const auto& each : attention_) {
      const CausalCache::Usage usage = each->usage();
      keep(usage.held <= usage.limit, usage.held, " cells held, cap ", usage.limit);
    }
  }

  // --- what is in files ------------------------------------------------------------------------------------------
  // The ends of paths of which all is in files.
  std::vector<KeptPath> kept() {
    std::vector<KeptPath> paths;
    std::set<const Node*> whole;  // saved with all above them
    std::map<const Node*, bool> goes_on;
    state().trie.visit([&](Node& node) {
      if (node.is_root() || !state().behind.is_saved(&node)) return;
      if (!node.parent()->is_root() && !whole.contains(node.parent())) return;
      whole.insert(&node);
      if (!files_of(node).empty()) goes_on[node.parent()] = true;
    });
    state().trie.visit([&](Node& node) {
      if (node.is_root() || !whole.contains(&node) || goes_on.contains(&node) || files_of(node).empty()) return;
      KeptPath path{node.name_space(), path_tokens(&node), {}};
      path.keys.resize(static_cast<std::size_t>(end_in_files(node)));
      for (const Node* at = &node; !at->is_root(); at = at->parent()) path.files.merge(files_of(*at));
      paths.push_back(std::move(path));
    });
    return paths;
  }
  // What the tree counts as being in a file is in one of these.
  void check_files(const std::set<std::string>& there) {
    state().trie.visit([&](Node& node) {
      if (node.is_root()) return;
      for (const std::string& name : files_of(node))
        keep(there.contains(name), "[", node.start(), ",", node.end(), ") of ", node.name_space(), " counts on ",
             name.substr(0, 6), ", which is not in the folder");
    });
  }
  // Whether a path that was kept is known.
  bool knows(const KeptPath& path) {
    return state().trie.match(path.name_space, path.keys).length == static_cast<std::int32_t>(path.keys.size());
  }

  // --- the end ---------------------------------------------------------------------------------------------------
  void close() {
    cache->close();
    const auto nothing = [](std::uint64_t left, const char* what) {
      if (left != 0) break_promise(Promise::kLeaks, left, " ", what, " outlive the cache");
    };
    for (const auto& each : attention_) {
      nothing(each->usage().held, "cells");
      nothing(each->usage().reserved, "reserved cells");
    }
    for (const auto& each : caches().states) nothing(each->capacity() - each->free_units(), "slots");
    if (state().host != nullptr) nothing(state().host->used(), "bytes of host memory");
    if (state().lower.disk() != nullptr) break_promise(Promise::kLeaks, "the disk tier outlives the cache");
    nothing(cache->stats().sessions, "sessions");
  }

  // Flips one bit of an image in host memory; where, and in which. Null: there is none that may be.
  std::pair<HostMemoryPtr, std::byte*> damage_memory(Random& random) {
    std::vector<BlobPtr> blobs;
    state().trie.visit([&](Node& node) {
      if (node.is_root()) return;
      state_of(&node).visit_blobs([&](const BlobPtr& blob) {
        if (blob->in_memory() && blob->state() == Blob::State::kSealed) blobs.push_back(blob);
      });
    });
    if (blobs.empty()) return {};
    const BlobPtr& blob = blobs[random.below(blobs.size())];
    const HostMemoryPtr memory = blob->memory();
    std::byte* at = memory->data() + random.below(memory->bytes());
    *at ^= static_cast<std::byte>(1u << random.below(8));
    damaged_.push_back(blob);
    return {memory, at};
  }
  bool damaged_in_memory() const { return !damaged_.empty(); }

  PrefixCachePtr cache;
  Calls calls;

 private:
  static std::set<std::string> files_of(const Node& node) {
    std::set<std::string> files;
    state_of(&node).visit_blobs([&](const BlobPtr& blob) {
      if (const auto file = std::dynamic_pointer_cast<DiskFile>(blob->source())) files.insert(file->name());
    });
    return files;
  }

  // Where what a saved node has ends: a window that nobody needs any more may leave its last tokens bare.
  static std::int32_t end_in_files(const Node& node) {
    const RestorePoint& point = state_of(&node).point();
    if (point.exists() && point.copied()) return node.end();
    std::int32_t end = node.start();
    for (const Held& held : state_of(&node).held) {
      for (const BlobSlice& slice : held.slices) end = std::max(end, slice.to);
    }
    return end;
  }

  static std::vector<std::int32_t> lengths_before(const Step& step, std::size_t sessions) {
    std::vector<std::int32_t> before(sessions, -1);
    for (std::size_t row = step.tokens().size(); row-- > 0;)
      before[static_cast<std::size_t>(step.sequences()[row])] = step.positions()[row];
    return before;
  }

  static float state_value(const std::vector<std::uint64_t>& hashes, std::int32_t length, std::int32_t layer,
                           bool delta, std::uint32_t column) {
    return length == 0 ? 0.0f
                       : kv_value(hashes[static_cast<std::size_t>(length) - 1],
                                  1000u + static_cast<std::uint32_t>(layer), delta, column);
  }

  static void put_rows(Step& step, const std::vector<const Text*>& texts, const CausalCache& cache,
                       std::int32_t layer) {
    const KvShape& shape = cache.shape();
    const auto rows = static_cast<std::int64_t>(step.tokens().size());
    Tensor k = Tensor::host(DType::kFloat32, {rows, 1, shape.k_dim});
    Tensor v = Tensor::host(DType::kFloat32, {rows, 1, shape.v_dim});
    for (std::size_t row = 0; row < step.tokens().size(); ++row) {
      const std::uint64_t hash = texts[static_cast<std::size_t>(step.sequences()[row])]
                                     ->hashes()[static_cast<std::size_t>(step.positions()[row])];
      write(k, row, shape.k_dim, hash, layer, false);
      write(v, row, shape.v_dim, hash, layer, true);
    }
    step.put(layer, k, v);
  }
  static void write(Tensor& rows, std::size_t row, std::uint32_t dim, std::uint64_t hash, std::int32_t layer,
                    bool value) {
    for (std::uint32_t i = 0; i < dim; ++i)
      rows.host_span<float>()[row * dim + i] = kv_value(hash, static_cast<std::uint32_t>(layer), value, i);
  }

  void put_states(Step& step, const std::vector<const Text*>& texts, const std::vector<std::int32_t>& before,
                  std::int32_t layer) {
    const RecurrentCache::States now = step.states(layer);
    const std::vector<std::vector<std::int32_t>> boundaries = step.boundaries();
    std::vector<float> conv, delta;
    for (std::size_t s = 0; s < texts.size(); ++s) {
      check_state(now.conv.host_span<float>().subspan(s * 4, 4), texts[s]->hashes(), before[s], layer, false);
      check_state(now.delta.host_span<float>().subspan(s * 4, 4), texts[s]->hashes(), before[s], layer, true);
      std::vector<std::int32_t> lengths = boundaries[s];
      lengths.push_back(before[s] +
                        static_cast<std::int32_t>(std::count(step.sequences().begin(), step.sequences().end(),
                                                             static_cast<std::int32_t>(s))));
      for (const std::int32_t length : lengths) {
        for (std::uint32_t i = 0; i < 4; ++i) {
          conv.push_back(state_value(texts[s]->hashes(), length, layer, false, i));
          delta.push_back(state_value(texts[s]->hashes(), length, layer, true, i));
        }
      }
    }
    const auto entries = static_cast<std::int64_t>(conv.size() / 4);
    Tensor convs = Tensor::host(DType::kFloat32, {entries, 2, 2}),
           deltas = Tensor::host(DType::kFloat32, {entries, 1, 2, 2});
    std::copy(conv.begin(), conv.end(), convs.host_span<float>().begin());
    std::copy(delta.begin(), delta.end(), deltas.host_span<float>().begin());
    step.put_states(layer, convs, deltas);
  }

  static void check_state(std::span<const float> values, const std::vector<std::uint64_t>& hashes, std::int32_t length,
                          std::int32_t layer, bool delta) {
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      if (values[i] != state_value(hashes, length, layer, delta, i))
        break_promise(Promise::kBytes, "the state of layer ", layer, " at ", length, " is of another prefix");
    }
  }

  void verify_slot(RecurrentCache& cache, const SlotRef& slot, const std::vector<std::uint64_t>& hashes,
                   std::int32_t length) {
    const Slot wanted[] = {slot.slot()};
    for (std::uint32_t layer = 0; layer < cache.shape().layers; ++layer) {
      const auto [conv, delta] = cache.store().read(layer, wanted);
      check_state(conv.host_span<float>(), hashes, length, cache.layers()[layer], false);
      check_state(delta.host_span<float>(), hashes, length, cache.layers()[layer], true);
      ++figures_.rows;
    }
  }

  static void verify_reach(const CausalCache& cache, const CellSpans& spans, std::int32_t length) {
    const std::int32_t floor = cache.visibility().floor(length);
    std::int32_t at = spans.empty() ? length : spans.front().position;
    if (floor < length && at > floor) break_promise(Promise::kBytes, "cells from ", at, " on, needed from ", floor);
    for (const CellSpan& span : spans) {
      if (span.position != at) break_promise(Promise::kBytes, "cells of ", at, " are missing");
      at = span.end_position();
    }
    if (floor < length && at < length) break_promise(Promise::kBytes, "cells end at ", at, " of ", length);
  }

  void verify_cells(CausalCache& cache, const CellSpans& spans, const std::vector<std::uint64_t>& hashes,
                    bool keys = true) {
    const KvShape& shape = cache.shape();
    for (std::uint32_t layer = 0; layer < shape.layers && !spans.empty(); ++layer) {
      const auto [k, v] = cache.store().rows(layer, spans);
      const std::int32_t start = spans.front().position;
      if (keys) verify_rows(k.host_span<float>(), shape.k_dim, start, hashes, cache.layers()[layer], false);
      verify_rows(v.host_span<float>(), shape.v_dim, start, hashes, cache.layers()[layer], true);
    }
  }

  void verify_rows(std::span<const float> rows, std::uint32_t dim, std::int32_t start,
                   const std::vector<std::uint64_t>& hashes, std::int32_t layer, bool value) {
    figures_.rows += rows.size() / dim;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t position = static_cast<std::size_t>(start) + i / dim;
      const float expected =
          kv_value(hashes[position], static_cast<std::uint32_t>(layer), value, static_cast<std::uint32_t>(i % dim));
      if (rows[i] != expected)
        break_promise(Promise::kBytes, value ? "V" : "K", " of layer ", layer, " at position ", position, " is ",
                      rows[i], ", expected ", expected);
    }
  }

  // What is damaged, or cannot be read from a disk that is not well, may be a miss; never other bytes.
  void verify_slice(std::size_t cache, const BlobSlice& slice, const std::vector<std::uint64_t>& hashes,
                    const std::set<std::string>& damaged_files, bool disk_is_well) {
    if (slice.blob == nullptr || slice.blob->state() == Blob::State::kFailed || is_damaged(slice.blob)) return;
    std::vector<std::byte> bytes(slice.blob->bytes());
    if (const HostMemoryPtr memory = slice.blob->memory()) {
      std::memcpy(bytes.data(), memory->data(), bytes.size());
    } else {
      const auto file = std::dynamic_pointer_cast<DiskFile>(slice.blob->source());
      if (!disk_is_well || file == nullptr || damaged_files.contains(file->name())) return;
      std::vector<std::uint32_t> all(slice.blob->sections().size());
      std::iota(all.begin(), all.end(), 0u);
      keep(slice.blob->read(all, bytes), "an image cannot be read back from its file");
    }
    const KvShape& shape = attention_[cache]->shape();
    const CellImage image(shape, slice.cells);
    std::vector<float> row;
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
      for (std::int32_t at = slice.from; at < slice.to; ++at) {
        for (const bool value : {false, true}) {
          row.resize(value ? shape.v_dim : shape.k_dim);
          std::memcpy(row.data(),
                      bytes.data() + image.row_offset(layer, value, 0, static_cast<std::uint32_t>(at - slice.first)),
                      row.size() * sizeof(float));
          verify_rows(row, static_cast<std::uint32_t>(row.size()), at, hashes, attention_[cache]->layers()[layer],
                      value);
        }
      }
    }
  }
  bool is_damaged(const BlobPtr& blob) const {
    return std::any_of(damaged_.begin(), damaged_.end(), [&](const auto& each) { return each.lock() == blob; });
  }

  const DayModel& model_;
  Figures& figures_;
  std::vector<std::shared_ptr<CausalCache>> attention_;
  std::vector<std::shared_ptr<RecurrentCache>> recurrent_;
  std::vector<std::shared_ptr<test::BlockCache>> blocks_;
  std::vector<std::weak_ptr<Blob>> damaged_;
};

}  // namespace kvtrie::oracle::day
