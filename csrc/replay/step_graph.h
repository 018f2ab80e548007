// Decode steps that are replayed: what one step of a model launched, as one launch for later steps of the same size.
//
// Concept (ops/launch_graph.h). A model computes a step while a StepRecording listens; `finish` makes a graph of what
// was launched, and proves it: the step is replayed, storing nothing, and the logits must have the same bits. From then
// on `replay` does all that the model would do for a step:
//
//     logits = graphs.replay(step)       undefined: there is no graph for this cache and number of rows, or one of
//                                        keys that have moved (ops/launch_graph.h), and none have here; or they
//                                        have, and are chosen from, which copies them
//     recording = graphs.record(step)    null where there will be none
//     logits = model(step)               as ever
//     recording->finish(logits)          from now on there is a graph, or a reason why not
//
// A model may be recorded if what it launches for a step depends on nothing but the number of rows, and reads nothing
// of the step but its token ids, what `attend_qkv` adds, and further inputs, which are given with each step. That is
// the caller's to know: a model that, say, drops all rows but the last one of each session launches other things for
// one session of two rows than for two sessions.
//
// A graph holds weights and pools in memory. It goes with the model's StepGraphs or with its cache, whichever ends
// first.
//
// Threads: a recording belongs to the thread that began it; all else may be called from any, for different steps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cache/causal_hold.h"
#include "ops/launch_graph.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/step.h"

namespace kvtrie {

class StepRecording;

// The graphs of one model.
class StepGraphs final : public EndObserver, public std::enable_shared_from_this<StepGraphs> {
 public:
  static std::shared_ptr<StepGraphs> create() { return std::shared_ptr<StepGraphs>(new StepGraphs); }

  // Computes the step: every layer is put and attended, and its sessions advance. Returns logits like those recorded.
  // Undefined, and nothing done, where there is no graph. Throws kArgument when a layer was put already, kClosed once
  // dropped, kDevice; the step is then as it was. `further`: as many as were recorded, of the same sizes, else
  // kArgument.
  Tensor replay(Step& step, const ops::FurtherInputs& further = {});

  // Begins to listen to the calling thread. Null for a step that graphs are not for: more than ops::kMaxGraphRows rows,
  // caches that are not on one device where ops::can_record; where too many recordings failed, or
  // the thread is recording already.
  std::shared_ptr<StepRecording> record(const StepPtr& step, const ops::FurtherInputs& further = {});

  struct Stats {
    std::uint64_t graphs = 0, launches = 0, bytes = 0;  // now; launches: those that one replay of each stands for
    std::uint64_t replays = 0, refusals = 0;            // totals; refusals: recordings without a graph
    std::string reason;                                 // of the last refusal
  };
  Stats stats() const;
  void forget(const PrefixCache& cache) noexcept override;

 private:
  friend class StepRecording;
  using GraphPtr = std::shared_ptr<const ops::LaunchGraph>;
  using Key = std::pair<const PrefixCache*, std::size_t>;  // and rows
  struct Entry {
    GraphPtr graph;
    int refusals = 0;
  };
  StepGraphs() = default;
  GraphPtr find(const Step& step) const;
  void keep(const Step& step, GraphPtr graph);
  void refuse(const Step& step, const std::string& reason, bool passing);

  mutable Mutex mutex_;
  std::map<Key, Entry> entries_ KVTRIE_GUARDED_BY(mutex_);  // of caches that live
  std::uint64_t replays_ KVTRIE_GUARDED_BY(mutex_) = 0;
  std::uint64_t refusals_ KVTRIE_GUARDED_BY(mutex_) = 0;
  std::string reason_ KVTRIE_GUARDED_BY(mutex_);
};

class StepRecording {
 public:
  // `logits`: what the model made of the step. Whether there is a graph now; `reason` says why not, also where the
  // device failed: the step itself was computed.
  bool finish(const Tensor& logits);
  const std::string& reason() const noexcept { return reason_; }

 private:
  friend class StepGraphs;
  StepRecording(std::shared_ptr<StepGraphs> graphs, StepPtr step, const ops::FurtherInputs& further,
                const cl::DevicePtr& device);
  std::shared_ptr<const ops::LaunchGraph> made(const Tensor& logits);
  std::vector<CausalHold> holds();
  bool proves(const ops::LaunchGraph& graph, const Tensor& logits);

  std::shared_ptr<StepGraphs> graphs_;
  StepPtr step_;
  ops::FurtherInputs further_;
  std::vector<std::vector<SlotRef>> before_;  // of each cache of states: one of each session; held until the proof
  ops::LaunchRecording recording_;
  std::string reason_;
  bool passing_ = false;  // the reason is one of this step: others of its size may well be recorded
};

}  // namespace kvtrie
