// Forwards: started and begun, put layer by layer in turns, dropped midway, and asked again after completion.
#pragma once

#include "causal_driver.h"

namespace kvtrie::oracle {

class CausalSteps : public CausalDriver {
 public:
  using CausalDriver::CausalDriver;

 protected:
  // Rows of the sequences `ids`, each from its `from` on (its length where none is named).
  Step make_step(const std::vector<SequenceId>& ids, const std::map<SequenceId, std::int32_t>& from = {}) {
    Step step;
    std::map<SequenceId, Rows> grown;
    std::map<SequenceId, std::int32_t> next = from;
    for (const SequenceId id : ids) {
      Rows& rows = grown.try_emplace(id, find(id) == nullptr ? Rows{} : find(id)->rows).first->second;
      std::int32_t& position = next.try_emplace(id, static_cast<std::int32_t>(rows.size())).first->second;
      const bool stored = position == static_cast<std::int32_t>(rows.size());
      if (stored) rows.push_back({extend(rows, token()), 0});
      step.ids.push_back(id);
      step.rows.push_back(rows[static_cast<std::size_t>(position)]);
      step.stored.push_back(stored);
      step.positions.push_back(position++);
    }
    step.causal.assign(ids.size(), true);
    step.unput = {0, 1};
    if (below(2) == 0) std::swap(step.unput[0], step.unput[1]);
    return step;
  }

  // Calls what claims `needed` cells. False: it was refused for lack of cells, and changed nothing. What complete
  // forwards still hold counts as free where the call lets go of it, so in a windowed cache the limit is a bound.
  template <class Call>
  bool fits(std::size_t needed, std::size_t replaced, Call call) {
    const std::string before = cache_->dump();
    const std::size_t free = cache_->free_cells() + replaced;
    try {
      call();
    } catch (const Error& error) {
      expect(error.kind() == ErrorKind::kCacheFull, error.what());
      const CacheFullCounts counts = error.cache_full();
      expect(counts.needed == needed && counts.free < needed && counts.free >= free, "the counts of CacheFull");
      expect(sight_.is_windowed() || counts.free == free, "free cells of CacheFull");
      expect(before == cache_->dump(), "a refused call changed something");
      return false;
    }
    expect(sight_.is_windowed() || needed <= free, "a step that does not fit was begun");
    return true;
  }

  void start() {
    std::vector<SequenceId> ids;
    const std::uint32_t sequences = 1 + below(3), rounds = 1 + below(4);
    for (std::uint32_t i = 0; i < sequences; ++i) {
      ids.insert(ids.end(), below(8) == 0 ? 1 + below(12) : rounds, user_number());
    }
    if (below(3) == 0) std::shuffle(ids.begin(), ids.end(), random_);
    for (const SequenceId id : ids) {
      const Twin* twin = find(id);
      if (twin != nullptr && twin->busy && !in_started(id)) return;
    }
    Step step = make_step(ids);
    step.started = true;
    const std::size_t replaced = started() == nullptr ? 0 : started()->fresh();
    if (below(10) == 0) {
      const std::string before = cache_->dump();
      fits(ids.size(), replaced, [&] { cache_->start_forward(step.positions, ids, true); });
      return expect(before == cache_->dump(), "reserve changed something");
    }
    if (!fits(ids.size(), replaced, [&] { step.forward = cache_->start_forward(step.positions, ids); })) return;
    drop_started();
    for (const SequenceId id : finished_.step.ids) {  // whose cells a complete forward may still have held
      if (Twin* twin = find(id)) ++twin->epoch;
    }
    begun(std::move(step));
  }

  void begin() {
    if (opened_.size() < 4 && below(2) == 0) {
      const SequenceId fresh = cache_->open_sequence();
      opened_.insert(fresh);
      open(fresh);
    }
    std::vector<SequenceId> ids;
    std::vector<ForwardRows> rows;
    std::map<SequenceId, std::int32_t> from;
    bool complete = true;
    for (std::uint32_t i = 0; i < 1 + below(2); ++i) {
      const SequenceId id = idle(true);
      if (id < 0 || std::count(ids.begin(), ids.end(), id) != 0) continue;
      const Twin& twin = *find(id);
      rows.push_back({id, 1 + below(6)});
      if (below(3) == 0) rows.back().from = from[id] = between(std::max(0, twin.length() - 8), twin.length());
      const std::int32_t at = rows.back().from < 0 ? twin.length() : rows.back().from;
      complete = complete && resumable(twin, at) && (at == twin.length() || at >= twin.held);
      ids.insert(ids.end(), rows.back().count, id);
    }
    if (ids.empty()) return;
    if (!complete) return expect_refused(ErrorKind::kNotRestorable, [&] { cache_->begin(rows); });
    Step step = make_step(ids, from);
    if (fits(step.fresh(), 0, [&] { step.forward = cache_->begin(rows); })) begun(std::move(step));
  }

  void begun(Step step) {
    for (const SequenceId id : step.ids) {
      open(id).busy = true;
      if (sight_.is_windowed()) ++open(id).epoch;
    }
    steps_.push_back(std::move(step));
  }

  // Some rows see what comes after them in their sequence; not after the first layer was read.
  void relax() {
    if (steps_.empty()) return;
    Step& step = steps_[below(static_cast<std::uint32_t>(steps_.size()))];
    std::vector<std::uint32_t> except;
    std::vector<bool> causal(step.ids.size(), true);
    for (std::uint32_t row = 0; row < step.ids.size(); ++row) {
      if (below(3) != 0) continue;
      except.push_back(row);
      causal[row] = false;
    }
    if (step.was_read && causal != step.causal) {
      return expect_refused(ErrorKind::kArgument, [&] { cache_->set_causal(*step.forward, except); });
    }
    cache_->set_causal(*step.forward, except);
    step.causal = causal;
  }

  // K and V of the rows that are stored; the others have numbers that nobody may ever see.
  void put_layer(const Step& step, std::uint32_t layer) {
    const auto count = static_cast<std::int64_t>(step.rows.size());
    Tensor k = Tensor::host(DType::kFloat32, {count, 2, 4}),
           v = Tensor::host(DType::kFloat32, {count, 2, shape_.v_dim});
    std::size_t k_at = 0, v_at = 0;
    for (std::size_t i = 0; i < step.rows.size(); ++i) {
      const Row row = step.stored[i] ? step.rows[i] : Row{mix(++unknown_), 0};
      for (std::uint32_t head = 0; head < 2; ++head) {
        for (std::uint32_t d = 0; d < 4; ++d) k.host_span<float>()[k_at++] = numbers_.key(row, layer, head, d);
        for (std::uint32_t d = 0; d < shape_.v_dim; ++d)
          v.host_span<float>()[v_at++] = numbers_.value(row, layer, head, d);
      }
    }
    cache_->put(*step.forward, cache_->layers()[layer], k, v);
  }

  void completed(const Step& step) {
    for (std::size_t i = 0; i < step.ids.size(); ++i) {
      Twin& twin = *find(step.ids[i]);
      if (step.stored[i]) twin.rows.push_back(step.rows[i]);
      twin.busy = false;
      touched_.insert(step.ids[i]);
    }
    for (const SequenceId id : touched_) {
      fire(*find(id));
      if (step.started) let_go(*find(id));
    }
  }

  // One layer of one open step; the last one completes it.
  void put() {
    if (steps_.empty()) return;
    const std::size_t at = below(static_cast<std::uint32_t>(steps_.size()));
    Step& step = steps_[at];
    const std::uint32_t layer = step.unput.back();
    step.unput.pop_back();
    put_layer(step, layer);
    if (step.unput.empty()) completed(step);
    const std::vector<Rows> seen = seen_by(step);
    if (below(4) == 0) check_get(step, seen, layer);
    if (below(4) == 0) check_attend(step, seen, layer);
    if (!step.unput.empty()) return;
    finished_ = {std::move(step), seen, {}};
    for (const SequenceId id : finished_.step.ids) finished_.epochs[id] = find(id)->epoch;
    steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  // A complete step answers as before, wherever its cells lie now, or says that its sequences were cut.
  void attend_again() {
    if (finished_.step.forward == nullptr) return;
    bool untouched = true;
    for (const auto& [id, epoch] : finished_.epochs) untouched = untouched && find(id) && find(id)->epoch == epoch;
    try {
      const std::uint32_t layer = below(2);
      check_attend(finished_.step, finished_.seen, layer);
      check_get(finished_.step, finished_.seen, layer);
    } catch (const Error& error) {
      expect(error.kind() == ErrorKind::kClosed && !untouched, error.what());
    }
  }

  // What each row sees: of its own sequence only, the step's rows included.
  std::vector<Rows> seen_by(const Step& step) {
    std::map<SequenceId, Rows> all;
    std::map<SequenceId, std::int32_t> end;
    for (std::size_t i = 0; i < step.ids.size(); ++i) {
      Rows& rows = all.try_emplace(step.ids[i], find(step.ids[i])->rows).first->second;
      if (!step.unput.empty() && step.stored[i]) rows.push_back(step.rows[i]);
      end[step.ids[i]] = step.positions[i] + 1;
    }
    std::vector<Rows> seen(step.ids.size());
    for (std::size_t i = 0; i < step.ids.size(); ++i) {
      const Rows& rows = all[step.ids[i]];
      for (std::int32_t key = 0; key < end[step.ids[i]]; ++key) {
        const bool visible =
            step.causal[i] ? sight_.sees(step.positions[i], key) : sight_.reaches(step.positions[i], key);
        if (visible) seen[i].push_back(rows[static_cast<std::size_t>(key)]);
      }
    }
    return seen;
  }

  // What a row may see through the mask is exactly its own history; no column is seen by nobody.
  void check_get(Step& step, const std::vector<Rows>& histories, std::uint32_t layer) {
    const CausalCache::History got = cache_->get(*step.forward, cache_->layers()[layer]);
    step.was_read = true;
    const auto columns = static_cast<std::size_t>(got.k.dim(0));
    const auto mask = got.mask.host_span<const float>();
    const auto keys = got.k.host_span<const float>(), values = got.v.host_span<const float>();
    const std::uint32_t dim = shape_.value_dim();
    expect(got.mask.shape() == Shape{static_cast<std::int64_t>(step.rows.size()), got.k.dim(0)}, "the mask's shape");
    std::vector<bool> seen_at_all(columns, false);
    for (std::size_t row = 0; row < step.rows.size(); ++row) {
      std::multiset<std::vector<float>> seen, wanted;
      for (std::size_t column = 0; column < columns; ++column) {
        if (mask[row * columns + column] != 0.0f) continue;
        seen_at_all[column] = true;
        std::vector<float> shown;
        for (std::size_t head = 0; head < 2; ++head) {
          const std::size_t at = column * 2 + head;
          const auto first = sight_.latent ? keys.begin() + static_cast<std::ptrdiff_t>((at + 1) * kKey - kLatent)
                                           : values.begin() + static_cast<std::ptrdiff_t>(at * dim);
          shown.insert(shown.end(), first, first + dim);
        }
        seen.insert(std::move(shown));
      }
      for (const Row& each : histories[row]) {
        std::vector<float> stored;
        for (std::uint32_t head = 0; head < 2; ++head) {
          for (std::uint32_t d = 0; d < dim; ++d) stored.push_back(value(each, layer, head, d));
        }
        wanted.insert(std::move(stored));
      }
      expect(seen == wanted, "get shows a row another history");
    }
    expect(std::count(seen_at_all.begin(), seen_at_all.end(), false) == 0, "get has a column that nobody sees");
  }

  void check_attend(Step& step, const std::vector<Rows>& histories, std::uint32_t layer) {
    const auto count = static_cast<std::int64_t>(step.rows.size());
    Tensor q = Tensor::host(DType::kFloat32, {count, 2, 4});
    for (float& each : q.host_span<float>()) each = static_cast<float>(below(200)) / 100.0f - 1.0f;
    const Tensor out = cache_->attend(*step.forward, cache_->layers()[layer], q, {});
    step.was_read = true;
    const std::uint32_t dim = shape_.value_dim();
    testing::Difference difference;
    for (std::size_t row = 0; row < step.rows.size(); ++row) {
      const Rows& keys = histories[row];
      for (std::uint32_t head = 0; head < 2; ++head) {
        const float* query = q.host_span<float>().data() + (row * 2 + head) * 4;
        double total = 0, sums[3] = {};
        for (const Row& key : keys) {
          double score = 0;
          for (std::uint32_t d = 0; d < 4; ++d) score += query[d] * numbers_.turned(key, layer, head, d);
          const double weight = std::exp(score / 2.0);
          total += weight;
          for (std::uint32_t d = 0; d < dim; ++d) sums[d] += weight * value(key, layer, head, d);
        }
        for (std::uint32_t d = 0; d < dim; ++d) {
          difference.add(out.host_span<float>()[(row * 2 + head) * dim + d], sums[d] / total);
        }
      }
    }
    expect(testing::within(__FILE__, __LINE__, difference.of_each(), testing::kAttention),
           "attend differs from the naive sum");
  }

  void drop() {
    if (steps_.empty()) return;
    const std::size_t at = below(static_cast<std::uint32_t>(steps_.size()));
    for (const SequenceId id : steps_[at].ids) find(id)->busy = false;
    if (below(2) == 0) cache_->drop(*steps_[at].forward);
    // Otherwise the last reference goes; the one of start_forward is also the cache's own, so that it is dropped by
    // hand.
    if (steps_[at].started) cache_->drop(*steps_[at].forward);
    steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(at));
  }
};

}  // namespace kvtrie::oracle
