// Forwards: started and begun, put layer by layer in turns, dropped midway, and asked again after completion.
#pragma once

#include "causal_driver.h"

namespace kvtrie::oracle {

class CausalSteps : public CausalDriver {
 public:
  using CausalDriver::CausalDriver;

 protected:
  Step make_step(const std::vector<SequenceId>& ids) {
    Step step;
    std::map<SequenceId, Rows> grown;
    for (const SequenceId id : ids) {
      Rows& rows = grown.try_emplace(id, find(id) == nullptr ? Rows{} : find(id)->rows).first->second;
      rows.push_back({extend(rows, token()), 0});
      step.ids.push_back(id);
      step.rows.push_back(rows.back());
    }
    step.unput = {0, 1};
    if (below(2) == 0) std::swap(step.unput[0], step.unput[1]);
    return step;
  }

  // Forgets the step of start_forward, which the cache drops.
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
    std::vector<std::int32_t> positions;
    std::map<SequenceId, std::int32_t> next;
    for (const SequenceId id : ids) {
      positions.push_back(next.try_emplace(id, cache_->length(id)).first->second++);
    }
    const bool reserve = below(10) == 0;
    if (positions.size() > cache_->free_cells() + started_rows()) {
      return expect_refused(ErrorKind::kCacheFull, [&] { cache_->start_forward(positions, ids, reserve); });
    }
    if (reserve) {
      const std::string before = cache_->dump();
      cache_->start_forward(positions, ids, true);
      return expect(before == cache_->dump(), "reserve changed something");
    }
    step.forward = cache_->start_forward(positions, ids);
    drop_started();
    for (const SequenceId id : ids) open(id).busy = true;
    steps_.push_back(std::move(step));
  }
  void begin() {
    if (opened_.size() < 4 && below(2) == 0) {
      const SequenceId fresh = cache_->open_sequence();
      opened_.insert(fresh);
      open(fresh);
    }
    std::vector<SequenceId> ids;
    std::vector<ForwardRows> rows;
    for (std::uint32_t i = 0; i < 1 + below(2); ++i) {
      const SequenceId id = idle(true);
      if (id < 0 || std::count(ids.begin(), ids.end(), id) != 0) continue;
      rows.push_back({id, 1 + below(6)});
      ids.insert(ids.end(), rows.back().count, id);
    }
    if (ids.empty()) return;
    if (ids.size() > cache_->free_cells()) {
      return expect_refused(ErrorKind::kCacheFull, [&] { cache_->begin_forward(rows); });
    }
    Step step = make_step(ids);
    step.forward = cache_->begin_forward(rows);
    for (const SequenceId id : ids) find(id)->busy = true;
    steps_.push_back(std::move(step));
  }

  // One layer of one open step; the last one completes it.
  void put() {
    if (steps_.empty()) return;
    const std::size_t at = below(static_cast<std::uint32_t>(steps_.size()));
    Step& step = steps_[at];
    const std::uint32_t layer = step.unput.back();
    step.unput.pop_back();
    const auto count = static_cast<std::int64_t>(step.rows.size());
    Tensor k = Tensor::host(DType::kFloat32, {count, 2, 4}), v = Tensor::host(DType::kFloat32, {count, 2, 3});
    std::size_t k_at = 0, v_at = 0;
    for (const Row& row : step.rows) {
      for (std::uint32_t head = 0; head < 2; ++head) {
        for (std::uint32_t d = 0; d < 4; ++d) k.host_span<float>()[k_at++] = numbers_.key(row, layer, head, d);
        for (std::uint32_t d = 0; d < 3; ++d) v.host_span<float>()[v_at++] = numbers_.value(row, layer, head, d);
      }
    }
    cache_->put(*step.forward, cache_->layers()[layer], k, v);
    if (step.unput.empty()) {
      for (std::size_t i = 0; i < step.ids.size(); ++i) {
        Twin& twin = *find(step.ids[i]);
        twin.rows.push_back(step.rows[i]);
        twin.busy = false;
        touched_.insert(step.ids[i]);
      }
      for (const SequenceId id : touched_) fire(*find(id));
    }
    std::vector<Rows> histories;
    for (std::size_t row = 0; row < step.rows.size(); ++row) histories.push_back(history(step, row));
    if (below(4) == 0) check_get(step, histories, layer);
    if (below(4) == 0) check_attend(step, histories, layer);
    if (!step.unput.empty()) return;
    finished_ = {std::move(step), std::move(histories)};
    steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  // A complete step answers as before, wherever its cells lie now, or says that its sequences were cut.
  void attend_again() {
    if (finished_.step.forward == nullptr) return;
    try {
      check_attend(finished_.step, finished_.histories, below(2));
    } catch (const Error& error) {
      expect(error.kind() == ErrorKind::kClosed, error.what());
    }
  }

  Rows history(const Step& step, std::size_t row) {
    Rows rows = find(step.ids[row])->rows;
    if (step.unput.empty()) {
      while (rows.back().history != step.rows[row].history) rows.pop_back();
      return rows;
    }
    for (std::size_t i = 0; i <= row; ++i) {
      if (step.ids[i] == step.ids[row]) rows.push_back(step.rows[i]);
    }
    return rows;
  }

  // What a row may see through the mask is exactly its own history.
  void check_get(const Step& step, const std::vector<Rows>& histories, std::uint32_t layer) {
    const CausalCache::History got = cache_->get(*step.forward, cache_->layers()[layer]);
    const auto columns = static_cast<std::size_t>(got.k.dim(0));
    const auto mask = got.mask.host_span<const float>();
    const auto values = got.v.host_span<const float>();
    expect(got.mask.shape() == Shape{static_cast<std::int64_t>(step.rows.size()), got.k.dim(0)}, "the mask's shape");
    for (std::size_t row = 0; row < step.rows.size(); ++row) {
      std::multiset<std::vector<float>> seen, wanted;
      for (std::size_t column = 0; column < columns; ++column) {
        if (mask[row * columns + column] != 0.0f) continue;
        const auto first = values.begin() + static_cast<std::ptrdiff_t>(column * 6);
        seen.emplace(first, first + 6);
      }
      for (const Row& each : histories[row]) {
        std::vector<float> stored;
        for (std::uint32_t head = 0; head < 2; ++head) {
          for (std::uint32_t d = 0; d < 3; ++d) stored.push_back(numbers_.value(each, layer, head, d));
        }
        wanted.insert(std::move(stored));
      }
      expect(seen == wanted, "get shows a row another history");
    }
  }

  void check_attend(const Step& step, const std::vector<Rows>& histories, std::uint32_t layer) {
    const auto count = static_cast<std::int64_t>(step.rows.size());
    Tensor q = Tensor::host(DType::kFloat32, {count, 2, 4});
    for (float& each : q.host_span<float>()) each = static_cast<float>(below(200)) / 100.0f - 1.0f;
    const Tensor out = cache_->attend(*step.forward, cache_->layers()[layer], q, {});
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
          for (std::uint32_t d = 0; d < 3; ++d) sums[d] += weight * numbers_.value(key, layer, head, d);
        }
        for (std::uint32_t d = 0; d < 3; ++d) {
          const double wanted = sums[d] / total, got = out.host_span<float>()[(row * 2 + head) * 3 + d];
          expect(std::abs(got - wanted) <= 1e-3 * (1.0 + std::abs(wanted)), "attend differs from the naive sum");
        }
      }
    }
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
