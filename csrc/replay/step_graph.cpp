#include "replay/step_graph.h"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cache/recurrent_hold.h"

namespace kvtrie {
namespace {

constexpr const char* kStepGraph = "step_graph";
// A step that pages or proves a kernel on the way cannot be recorded; the next one can. More often, it is the model.
constexpr int kMaxRefusals = 8;

// The device of all caches of the step; null when there is none, or not one, and with a kind of states whose kernels
// cannot be recorded.
cl::DevicePtr device_of(const PrefixCache& cache) {
  std::vector<cl::DevicePtr> devices;
  for (const auto& each : cache.caches()) devices.push_back(each->store().device());
  for (const auto& each : cache.states()) {
    auto* const recurrent = dynamic_cast<RecurrentCache*>(each.get());
    devices.push_back(recurrent == nullptr ? nullptr : recurrent->store().device());
  }
  const bool one = !devices.empty() && std::all_of(devices.begin(), devices.end(),
                                                   [&](const auto& each) { return each == devices.front(); });
  return one ? devices.front() : nullptr;
}

std::vector<ops::StepTables> tables_of(const std::vector<CausalHold>& holds) {
  std::vector<ops::StepTables> tables;
  tables.reserve(holds.size());
  for (const CausalHold& hold : holds) tables.push_back(hold.tables());
  return tables;
}

// With what the graph chooses from. REQUIRES: the graph serves the tables.
void add_choices(std::vector<ops::StepTables>& tables, const std::vector<CausalHold>& holds,
                 const ops::LaunchGraph& graph) {
  for (const auto& [cache, ratio, masked] : graph.choices())
    tables[cache].choices.push_back(holds[cache].choice(ratio, masked));
}

// Why this step has no graph, though others of its size may; empty where it may. Layers of a step that puts no rows, as
// one that computes a token again may be, launch nothing to put them, and neither would a replay.
std::string passing_reason(const CausalHold& hold, const ops::RecordedTables& recorded) {
  const auto puts = [](const ops::QkvRows::Row& row) { return row.cell >= 0; };
  if (std::ranges::none_of(hold.tables().rows, puts)) return "all rows of the step are in one of its caches already";
  const bool copies = !recorded.choices.empty() && hold.copies();
  return copies ? "keys that have moved are copied where some are chosen" : "";
}

bool chooses_copies(const std::vector<CausalHold>& holds, const ops::LaunchGraph& graph) {
  return std::ranges::any_of(graph.choices(), [&](const auto& choice) { return holds[choice.cache].copies(); });
}

// REQUIRES: device_of() its cache is not null.
StateForward& recurrent(const OpenStep& step, std::size_t state) {
  return static_cast<StateForward&>(step.of_states(state));
}

// Whether further inputs could be taken for others of the step: uploads are told by what they hold.
bool alike(const Step& step, const ops::FurtherInputs& further) {
  std::vector<std::span<const std::int32_t>> seen{step.tokens(), step.positions()};
  for (const std::vector<std::int32_t>& each : further) {
    if (std::ranges::any_of(seen, [&](const auto& other) { return std::ranges::equal(each, other); })) return true;
    seen.emplace_back(each);
  }
  return false;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return false;
  std::vector<std::byte> left(a.nbytes()), right(b.nbytes());
  a.copy_to_host(left.data());
  b.copy_to_host(right.data());
  return left == right;
}

}  // namespace

// ---- graphs ---------------------------------------------------------------------------------------------------------

StepGraphs::GraphPtr StepGraphs::find(const Step& step) const {
  const MutexLock lock(mutex_);
  const auto entry = entries_.find({step.cache().get(), step.tokens().size()});
  return entry == entries_.end() ? nullptr : entry->second.graph;
}

Tensor StepGraphs::replay(Step& step, const ops::FurtherInputs& further) {
  const GraphPtr graph = find(step);
  if (graph == nullptr) return {};
  step.require_kept();
  Tensor logits;
  {
    std::vector<CausalHold> holds;
    for (std::size_t i = 0; i < step.cache()->caches().size(); ++i)
      holds.emplace_back(*step.cache()->caches()[i], step.open_.of_attention(i));
    std::vector<ops::StepTables> tables = tables_of(holds);
    if (!graph->serves(tables) || chooses_copies(holds, *graph)) return {};
    add_choices(tables, holds, *graph);
    std::vector<RecurrentHold> state_holds;
    for (std::size_t i = 0; i < step.cache()->states().size(); ++i)
      state_holds.emplace_back(static_cast<RecurrentCache&>(*step.cache()->states()[i]), recurrent(step.open_, i));
    std::vector<std::vector<ops::StateRows>> states;
    states.reserve(state_holds.size());
    for (const RecurrentHold& hold : state_holds) states.push_back(hold.rows());
    logits = graph->replay({step.tokens(), tables, states, further});
    for (CausalHold& hold : holds) hold.put_all();
    for (RecurrentHold& hold : state_holds) hold.put_all();
  }
  step.attended_ = true;
  step.finish_if_complete();
  const MutexLock lock(mutex_);
  ++replays_;
  return logits;
}

std::shared_ptr<StepRecording> StepGraphs::record(const StepPtr& step, const ops::FurtherInputs& further) {
  require(step != nullptr && step->cache() != nullptr, kStepGraph, "step: got none, allowed one of a session");
  if (step->complete() || step->undecided() || step->dropped() || step->tokens().size() > ops::kMaxGraphRows)
    return nullptr;
  if (ops::LaunchRecording::active()) return nullptr;
  const cl::DevicePtr device = device_of(*step->cache());
  if (device == nullptr || !ops::can_record(*device)) return nullptr;
  {
    const MutexLock lock(mutex_);
    const auto entry = entries_.find({step->cache().get(), step->tokens().size()});
    if (entry != entries_.end() && entry->second.refusals >= kMaxRefusals) return nullptr;
  }
  return std::shared_ptr<StepRecording>(new StepRecording(shared_from_this(), step, further, device));
}

void StepGraphs::keep(const Step& step, GraphPtr graph) {
  step.cache()->add_observer(shared_from_this());
  const MutexLock lock(mutex_);
  entries_[{step.cache().get(), step.tokens().size()}].graph.swap(graph);
}

void StepGraphs::refuse(const Step& step, const std::string& reason, bool passing) {
  step.cache()->add_observer(shared_from_this());
  const MutexLock lock(mutex_);
  entries_[{step.cache().get(), step.tokens().size()}].refusals += int{!passing};
  ++refusals_;
  reason_ = reason;
}

void StepGraphs::forget(const PrefixCache& cache) noexcept {
  std::map<Key, Entry> gone;  // ends without the lock: graphs wait for the device
  const MutexLock lock(mutex_);
  for (auto entry = entries_.lower_bound({&cache, 0}); entry != entries_.end() && entry->first.first == &cache;)
    gone.insert(entries_.extract(entry++));
}

StepGraphs::Stats StepGraphs::stats() const {
  const MutexLock lock(mutex_);
  Stats stats;
  for (const auto& [key, entry] : entries_) {
    if (entry.graph == nullptr) continue;
    ++stats.graphs;
    stats.launches += entry.graph->launches();
    stats.bytes += entry.graph->nbytes();
  }
  stats.replays = replays_;
  stats.refusals = refusals_;
  stats.reason = reason_;
  return stats;
}

// ---- recording ------------------------------------------------------------------------------------------------------

StepRecording::StepRecording(std::shared_ptr<StepGraphs> graphs, StepPtr step, const ops::FurtherInputs& further,
                             const cl::DevicePtr& device)
    : graphs_(std::move(graphs)), step_(std::move(step)), further_(further), recording_(device) {
  const std::vector<std::vector<HeldState>> of_sessions = step_->states_before();
  before_.resize(of_sessions.empty() ? 0 : step_->cache()->states().size());
  for (std::size_t cache = 0; cache < before_.size(); ++cache)
    for (const std::vector<HeldState>& states : of_sessions) before_[cache].push_back(states[cache].slot());
}

// The caches of the step as it left them; empty, with the reason, when they no longer are.
std::vector<CausalHold> StepRecording::holds() {
  std::vector<CausalHold> holds;
  for (std::size_t i = 0; i < step_->cache()->caches().size(); ++i) {
    std::optional<CausalHold> hold = CausalHold::again(*step_->cache()->caches()[i], step_->open_.of_attention(i));
    if (!hold) {
      reason_ = "the step's cells moved before it could be replayed";
      return {};
    }
    holds.push_back(std::move(*hold));
  }
  return holds;
}

// Stores nothing: the step's own launches did, and others may have read it since.
bool StepRecording::proves(const ops::LaunchGraph& graph, const Tensor& logits) {
  Tensor again, turning;  // by each of the graph's tables
  {
    const std::vector<CausalHold> caches = holds();
    if (!reason_.empty()) return false;
    std::vector<ops::StepTables> tables = tables_of(caches);
    add_choices(tables, caches, graph);
    for (ops::StepTables& table : tables)
      for (ops::QkvRows::Row& row : table.rows) row.cell = -1;
    std::vector<std::vector<ops::StateRows>> states;
    for (std::size_t i = 0; i < before_.size(); ++i)
      states.push_back(RecurrentHold::rows_again(recurrent(step_->open_, i), before_[i]));
    const ops::StepInputs inputs{step_->tokens(), tables, states, further_};
    again = graph.replay(inputs);
    turning = graph.turns() ? graph.replay(inputs, true) : again;
  }
  if (same_bits(again, logits) && same_bits(turning, logits)) return true;
  reason_ = "the replayed step gave other logits";
  log_message(LogLevel::kWarning,
              cat("[step_graph] a step is not replayed on ", logits.device()->info().name, ": it gave other logits"));
  return false;
}

std::shared_ptr<const ops::LaunchGraph> StepRecording::made(const Tensor& logits) {
  reason_ = step_->complete() || step_->undecided() ? "" : "the step is not complete";
  if (!reason_.empty()) return nullptr;
  std::vector<ops::RecordedTables> tables;
  for (const CausalHold& hold : holds()) {
    tables.push_back(hold.recorded());
    if (const std::string why = passing_reason(hold, tables.back()); !why.empty()) reason_ = why, passing_ = true;
  }
  if (alike(*step_, further_)) reason_ = "further inputs are like others of the step";
  if (!reason_.empty()) return nullptr;
  std::vector<ops::DeviceStateRuns> states;
  for (std::size_t i = 0; i < step_->cache()->states().size(); ++i)
    states.push_back(RecurrentHold::recorded(recurrent(step_->open_, i)));
  auto graph = ops::LaunchGraph::make(recording_, {step_->tokens(), step_->positions(), tables, states, further_},
                                      logits, reason_);
  return graph != nullptr && proves(*graph, logits) ? graph : nullptr;
}

bool StepRecording::finish(const Tensor& logits) {
  recording_.stop();
  std::shared_ptr<const ops::LaunchGraph> graph;
  try {
    graph = made(logits);
  } catch (const Error& error) {  // the step itself was computed
    if (error.kind() != ErrorKind::kDevice) throw;
    reason_ = error.what();
    log_message(LogLevel::kWarning, cat("[step_graph] a step is not replayed: ", reason_));
  }
  before_.clear();
  if (graph == nullptr) {
    graphs_->refuse(*step_, reason_, passing_);
    return false;
  }
  graphs_->keep(*step_, std::move(graph));
  return true;
}

}  // namespace kvtrie
