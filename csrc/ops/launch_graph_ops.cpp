#include "ops/launch_graph_ops.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/error.h"

namespace kvtrie::ops {
namespace {

using Launch = cl::LaunchRecorder::Launch;

constexpr std::string_view kAttend = "attend_tiles", kMerge = "attend_merge", kNorm = "rms_norm", kTurn = "take_turned",
                           kTensorAttend = "tensor_attend";

std::uint64_t word_of(launch::LaunchWordBits bit, std::uint64_t value) { return std::uint64_t{1} << bit | value; }
std::uint64_t slot_word(std::uint64_t slot) { return word_of(launch::kSlotBit, slot); }
std::uint64_t step_word(std::int32_t at) { return slot_word(launch::kSlotStep + static_cast<std::uint64_t>(at)); }
std::uint64_t own_word(std::uint64_t floats) { return word_of(launch::kOwnBit, floats); }

bool contains(const std::vector<_cl_mem*>& buffers, _cl_mem* buffer) {
  return std::find(buffers.begin(), buffers.end(), buffer) != buffers.end();
}

// The number of the cache whose buffer it is.
std::optional<std::int32_t> place_of(const std::vector<_cl_mem*>& buffers, _cl_mem* buffer) {
  const auto found = std::find(buffers.begin(), buffers.end(), buffer);
  if (found == buffers.end()) return std::nullopt;
  return static_cast<std::int32_t>(found - buffers.begin());
}

void set_word(BufferOp& op, std::size_t at, std::uint64_t word) {
  op.op.words[at] = word;
  op.buffers[at] = nullptr;
}

// REQUIRES: the kernel has such an argument.
std::size_t index_of(const LaunchKernel& kernel, std::string_view argument) {
  const std::optional<std::size_t> at = kernel.find(argument);
  ensure(at.has_value(), "launch_graph", "argument: got ", argument, ", allowed one of ", kernel.name);
  return *at;
}
std::uint64_t word_named(const BufferOp& op, std::string_view argument) {
  return op.op.words[index_of(*op.kernel, argument)];
}

// Which of the kernel's arguments the launch has: those of a form, by its options.
std::vector<std::size_t> arguments_of(const LaunchKernel& kernel, const Launch& launch) {
  struct Part {
    std::string_view kernel, option, first, behind;
  };
  static constexpr std::array kParts{Part{"tensor_few", "NORMED", "weight", "table"},
                                     Part{"tensor_few", "QKV", "table", ""},
                                     Part{kTensorAttend, "MERGES", "merge_begin_at", ""}};
  std::vector<bool> has(kernel.arguments.size(), true);
  for (const Part& part : kParts) {
    if (kernel.name != part.kernel || options_by_name(launch).contains(std::string(part.option))) continue;
    const std::size_t end = kernel.find(part.behind).value_or(has.size());
    std::fill(has.begin() + index_of(kernel, part.first), has.begin() + end, false);
  }
  std::vector<std::size_t> given;
  for (std::size_t i = 0; i < has.size(); ++i)
    if (has[i]) given.push_back(i);
  return given;
}

// Why the launch is not one of the kernel that the table knows; empty when it is.
std::string mismatch(const LaunchKernel& kernel, const Launch& launch) {
  const std::vector<std::size_t> places = arguments_of(kernel, launch);
  const std::size_t given = launch.arguments.size(), allowed = places.size();
  if (given != allowed) return cat("kernel ", kernel.name, ": got ", given, " arguments, allowed ", allowed);
  for (std::size_t i = 0; i < given; ++i) {
    const LaunchArgument& argument = kernel.arguments[places[i]];
    const cl::LaunchRecorder::Word& word = launch.arguments[i];
    const bool fits =
        argument.is_buffer() ? word.buffer != nullptr : word.buffer == nullptr && word.bytes == argument.bytes();
    if (!fits) return cat("kernel ", kernel.name, ": ", argument.name, ": got another kind of argument");
  }
  return "";
}

// The launch as it is, without what differs from step to step.
BufferOp plain_op(const Launch& launch, const LaunchKernel& kernel) {
  BufferOp op;
  op.kernel = &kernel;
  op.op.kernel = static_cast<std::int32_t>(&kernel - launch_kernels().data());
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t of_item = of_groups(kernel) ? std::max<std::size_t>(launch.local[i], 1) : 1;
    op.op.size[i] = static_cast<std::int32_t>(std::max<std::size_t>(launch.global[i], 1) / of_item);
  }
  const std::vector<std::size_t> places = arguments_of(kernel, launch);
  for (std::size_t i = 0; i < launch.arguments.size(); ++i) {
    op.op.words[places[i]] = launch.arguments[i].value;
    op.buffers[places[i]] = launch.arguments[i].buffer;
  }
  return op;
}

// Turns launches into operations one by one.
class Builder {
 public:
  Builder(std::span<const Launch> launches, const GraphPlaces& places, GraphOps& graph)
      : places_(places), graph_(graph), forms_(launches) {}

  // Why the launch cannot be replayed; empty when it can.
  std::string add(const Launch& launch) {
    const std::int32_t form = forms_.of(launch);
    const LaunchKernel* kernel = find_launch_kernel(launch.program, name_in_graph(launch, form));
    if (kernel == nullptr) return cat("kernel ", launch.program, ".", launch.name, " is not one that graphs know");
    if (std::string why = mismatch(*kernel, launch); !why.empty()) return why;
    if (kernel->name == kMerge) return "";  // made with its attend, or a part of it
    if (std::string why = misfit(*kernel, launch); !why.empty()) return why;
    BufferOp op = plain_op(launch, *kernel);
    for (std::size_t i = 0; i < kernel->arguments.size(); ++i)
      if (kernel->arguments[i].writes()) forget(op.buffers[i]);
    if (kernel->name == kTurn) return note_turned(op);
    op.op.form = form;
    if (std::string why = bind(op); !why.empty()) return why;
    if (kernel->name == "mean_keys")
      graph_.mean_dim = std::max<std::uint64_t>(graph_.mean_dim, std::stoull(options_by_name(launch).at("DIM")));
    if (kernel->name == kAttend && !of_chosen(op)) {
      if (std::string why = find_layer(op, launch); !why.empty()) return why;
    }
    if (kernel->name == kTensorAttend) complete(op, launch);
    graph_.ops.push_back(op);
    if (kernel->name == kAttend) add_merge(op, launch);
    return "";
  }

 private:
  // Why the device's graphs have no such launch: what work-items of a group share is one work-item's own on a CPU, and
  // in a list of groups a kernel is a function of a group, or of a work-item that shares nothing.
  std::string misfit(const LaunchKernel& kernel, const Launch& launch) const {
    if (!places_.by_groups) {
      const bool apart = std::ranges::all_of(launch.local, [](std::size_t each) { return each <= 1; });
      return apart ? "" : cat("kernel ", launch.name, " was launched with groups of several work-items");
    }
    const bool shares_nothing = kernel.program == "copy" || kernel.program == "elementwise" || kernel.name == "embed";
    return of_groups(kernel) || shares_nothing ? "" : cat("kernel ", kernel.name, " is not one of graphs of groups");
  }

  // Attention by groups of 32 lines, which merge by themselves.
  void complete(BufferOp& attend, const Launch& launch) {
    constexpr std::uint64_t kLines = 32;
    const std::uint64_t lines = places_.rows_of_step * word_named(attend, "group");
    const std::uint64_t parts = (lines + kLines - 1) / kLines;
    attend.op.size[1] = static_cast<std::int32_t>(parts);
    set_word(attend, index_of(*attend.kernel, "parts"), parts);
    set_word(attend, index_of(*attend.kernel, "rows"), static_cast<std::uint64_t>(places_.rows_of_step));
    graph_.partial_heads = std::max(graph_.partial_heads, word_named(attend, "heads"));
    graph_.partial_dim = std::max<std::uint64_t>(graph_.partial_dim, std::stoull(options_by_name(launch).at("K_DIM")));
  }

  // Buffers are used in turn.
  void forget(_cl_mem* buffer) {
    turned_.erase(buffer);
    scores_.erase(buffer);
    means_.erase(buffer);
  }

  bool of_chosen(const BufferOp& attend) const {
    return attend.op.header_at >= places_.chosen_header_at && !places_.chosen_plans.empty();
  }

  // Made again before its attend, where a step needs it; until then that reads the queries that were turned.
  std::string note_turned(const BufferOp& turn) {
    graph_.saw_moved = true;
    turned_.insert_or_assign(turn.buffers[index_of(*turn.kernel, "turned")], turn);
    return "";
  }

  std::string find_layer(BufferOp& attend, const Launch& launch) {
    const std::size_t q = index_of(*attend.kernel, "q"), q_offset = index_of(*attend.kernel, "q_offset");
    if (const auto turn = turned_.find(attend.buffers[q]); turn != turned_.end()) {
      attend.buffers[q] = turn->second.buffers[index_of(*turn->second.kernel, "q")];
      attend.op.words[q_offset] = word_named(turn->second, "q_offset");
    }
    const auto layer = place_of(places_.keys.at(attend.op.header_at / launch::kHeaderInts),
                                attend.buffers[index_of(*attend.kernel, "k")]);
    if (!layer) return "attention read keys of no layer of its cache";
    attend.layer = *layer;
    attend.k_dim = std::stoi(options_by_name(launch).at("K_DIM"));
    graph_.query_floats = std::max(graph_.query_floats, word_named(attend, "heads") * attend.k_dim);
    return "";
  }

  // Names in place of the buffers that differ from step to step.
  std::string bind(BufferOp& op) {
    for (std::size_t i = 0; i < op.kernel->arguments.size(); ++i) {
      const LaunchArgument& argument = op.kernel->arguments[i];
      if (argument.is_buffer() && op.buffers[i] == nullptr && argument.role != LaunchRole::kLinesDone)
        continue;  // its form does not have it
      if (std::string why = bind(op, i, argument.role); !why.empty()) return why;
    }
    if (op.kernel->axis >= 0) {
      op.op.axis = op.kernel->axis;
      op.op.count_at = op.op.header_at + op.kernel->count;
    }
    for (_cl_mem* buffer : op.buffers) {
      if (buffer != nullptr && (contains(places_.uploads, buffer) || contains(places_.further, buffer) ||
                                buffer == places_.ids || buffer == places_.positions))
        return cat("kernel ", op.kernel->name, " reads a tensor that came from the host in the step");
    }
    return "";
  }

  std::string bind(BufferOp& op, std::size_t i, LaunchRole role) {
    _cl_mem* const buffer = op.buffers[i];
    switch (role) {
      case LaunchRole::kRows: {
        const auto cache = place_of(places_.rows, buffer);
        if (!cache) return "rows went to cells of no cache of the step";
        set_word(op, i, step_word(places_.rows_at[*cache]));
        break;
      }
      case LaunchRole::kPlan: {
        if (const auto chosen = place_of(places_.chosen_plans, buffer); chosen) {
          op.op.header_at = places_.chosen_header_at + launch::kHeaderInts * *chosen;
          graph_.chooses = true;
          break;  // it lies where it lay
        }
        const auto cache = place_of(places_.plans, buffer);
        if (!cache) return "attention was planned by no cache of the step";
        op.op.header_at = launch::kHeaderInts * *cache;
        set_word(op, i, step_word(0));
        break;
      }
      case LaunchRole::kRuns: {
        const auto cache = place_of(places_.runs, buffer);
        if (!cache) return "states went to slots of no cache of the step";
        op.op.header_at = launch::kHeaderInts * (static_cast<std::int32_t>(places_.plans.size()) + *cache);
        set_word(op, i, word_of(launch::kHeaderBit, static_cast<std::uint64_t>(op.op.header_at) + launch::kRuns));
        break;
      }
      case LaunchRole::kTargets: {
        const auto cache = place_of(places_.targets, buffer);
        if (!cache) return "rows were put in cells of no cache of the step";
        op.op.header_at = launch::kHeaderInts * *cache;
        set_word(op, i,
                 word_of(launch::kHeaderBit, static_cast<std::uint64_t>(op.op.header_at) + launch::kTargetTable));
        break;
      }
      case LaunchRole::kPositions:
        if (buffer == places_.positions) set_word(op, i, step_word(places_.positions_at));
        break;
      case LaunchRole::kCells:
      case LaunchRole::kMask:
      case LaunchRole::kTokens:
      case LaunchRole::kStarts:
      case LaunchRole::kTails:
        return bind_choice(op, i, role);
      case LaunchRole::kPlaces:
        if (!contains(places_.chosen_plans, buffer)) return "chosen keys went into no plan of the step";
        break;
      case LaunchRole::kScores:
      case LaunchRole::kMeans:
        return bind_scratch(op, i, role);
      case LaunchRole::kPartialOut:
        set_word(op, i, slot_word(launch::kSlotPartialOut));
        break;
      case LaunchRole::kPartialStats:
        set_word(op, i, slot_word(launch::kSlotPartialStats));
        break;
      case LaunchRole::kLinesDone:
        set_word(op, i, word_of(launch::kHeaderBit, static_cast<std::uint64_t>(op.op.header_at) + launch::kLinesDone));
        break;
      case LaunchRole::kQueries:  // of no operation that was recorded
        break;
      case LaunchRole::kIds:
        if (buffer == places_.ids) set_word(op, i, step_word(places_.ids_at));
        [[fallthrough]];
      case LaunchRole::kPointer:
        if (const auto further = place_of(places_.further, buffer); buffer != nullptr && further)
          set_word(op, i, step_word(places_.further_at[*further]));
        if (buffer != nullptr && buffer == places_.logits) set_word(op, i, slot_word(launch::kSlotLogits));
        break;
      case LaunchRole::kNumber:
      case LaunchRole::kPlanned:
        break;
    }
    return "";
  }

  // A table of a choice; a buffer that is none stands in the place of one that the kernel does not read.
  std::string bind_choice(BufferOp& op, std::size_t i, LaunchRole role) {
    for (const GraphPlaces::ChoicePlace& choice : places_.choices) {
      for (const auto& [table, number] : choice.tables) {
        if (table != op.buffers[i]) continue;
        op.op.header_at = choice.header_at;
        set_word(op, i, word_of(launch::kHeaderBit, static_cast<std::uint64_t>(choice.header_at) + number));
        if (role == LaunchRole::kMask && word_named(op, "mask_offset") != 0) return "rows chose one after the other";
        return "";
      }
    }
    return role == LaunchRole::kMask ? "rows chose from keys of no cache of the step" : "";
  }

  // Scores and keys of blocks, which are as many as the step says: written first, then read by the same choice.
  std::string bind_scratch(BufferOp& op, std::size_t i, LaunchRole role) {
    auto& known = role == LaunchRole::kScores ? scores_ : means_;
    _cl_mem* const buffer = op.buffers[i];
    if (op.kernel->arguments[i].writes()) {
      known.insert_or_assign(buffer, op.op.header_at);
    } else if (const auto written = known.find(buffer); written != known.end()) {
      if (role == LaunchRole::kScores) op.op.header_at = written->second;
    } else {
      return role == LaunchRole::kScores ? "rows chose by scores of no choice of the step" : "";
    }
    set_word(op, i, slot_word(role == LaunchRole::kScores ? launch::kSlotScores : launch::kSlotMeans));
    return "";
  }

  // The kernel that joins the partial results of `attend`; launched in the recorded step only if there were any.
  void add_merge(const BufferOp& attend, const Launch& launch) {
    BufferOp op;
    op.kernel = find_launch_kernel("attention_merge", kMerge);
    op.op.kernel = static_cast<std::int32_t>(op.kernel - launch_kernels().data());
    op.op.size[1] = static_cast<std::int32_t>(word_named(attend, "heads"));
    op.op.axis = op.kernel->axis;
    op.op.header_at = attend.op.header_at;
    op.op.count_at = op.op.header_at + op.kernel->count;
    for (std::size_t i = 0; i < op.kernel->arguments.size(); ++i) {
      const LaunchArgument& argument = op.kernel->arguments[i];
      if (argument.role == LaunchRole::kPlanned) continue;
      const std::size_t from = index_of(*attend.kernel, argument.name);
      op.op.words[i] = attend.op.words[from];
      op.buffers[i] = attend.buffers[from];
    }
    graph_.ops.push_back(op);
    graph_.partial_heads = std::max(graph_.partial_heads, word_named(attend, "heads"));
    graph_.partial_dim = std::max<std::uint64_t>(graph_.partial_dim, std::stoull(options_by_name(launch).at("V_DIM")));
  }

  const GraphPlaces& places_;
  GraphOps& graph_;
  const LaunchForms forms_;
  std::map<_cl_mem*, std::int32_t> scores_, means_;  // written by the choice that has this header
  std::map<_cl_mem*, BufferOp> turned_;              // launches that turned queries, by where they put them
};

bool reads(const BufferOp& op, _cl_mem* buffer) {
  for (std::size_t i = 0; i < op.kernel->arguments.size(); ++i)
    if (op.buffers[i] == buffer && op.kernel->arguments[i].reads()) return true;
  return false;
}

bool writes(const BufferOp& op, _cl_mem* buffer) {
  for (std::size_t i = 0; i < op.kernel->arguments.size(); ++i)
    if (op.buffers[i] == buffer && op.kernel->arguments[i].writes()) return true;
  return false;
}

// One past the last operation that reads what the norm at `at` writes. 0: the norm must be shared, since its input
// changes before that: a worker that is late could still be reading it.
std::size_t readers_end(const std::vector<BufferOp>& ops, std::size_t at) {
  const LaunchKernel& norm = *ops[at].kernel;
  _cl_mem *const x = ops[at].buffers[index_of(norm, "x")], *const y = ops[at].buffers[index_of(norm, "y")];
  if (y == nullptr || y == x || word_named(ops[at], "y_offset") != 0) return 0;
  std::size_t end = at + 1;
  for (std::size_t i = at + 1; i < ops.size(); ++i) {
    if (reads(ops[i], y)) end = i + 1;
    if (writes(ops[i], y)) break;
  }
  for (std::size_t i = at + 1; i < end; ++i)
    if (x != nullptr && writes(ops[i], x)) return 0;
  return end;
}

// Lets an operation read at `word` what it reads from `buffer`.
void read_from(BufferOp& op, _cl_mem* buffer, std::uint64_t word) {
  for (std::size_t i = 0; i < op.kernel->arguments.size(); ++i)
    if (op.buffers[i] == buffer && op.kernel->arguments[i].reads()) set_word(op, i, word);
}

// Lets every worker norm for itself: to wait for one that norms a row takes longer.
void make_norms_own(GraphOps& graph) {
  std::map<_cl_mem*, std::uint64_t> places;
  std::vector<BufferOp>& ops = graph.ops;
  for (std::size_t at = 0; at < ops.size(); ++at) {
    if (ops[at].kernel->name != kNorm) continue;
    const std::size_t end = readers_end(ops, at);
    if (end == 0) continue;
    const std::size_t y_at = index_of(*ops[at].kernel, "y");
    _cl_mem* const y = ops[at].buffers[y_at];
    const std::uint64_t floats = static_cast<std::uint64_t>(ops[at].op.size[1]) * word_named(ops[at], "dim");
    const auto [place, is_new] = places.emplace(y, graph.own_floats);
    if (is_new) graph.own_floats += (floats + 15) / 16 * 16;
    ops[at].op.own = 1;
    set_word(ops[at], y_at, own_word(place->second));
    for (std::size_t i = at + 1; i < end; ++i) read_from(ops[i], y, own_word(place->second));
  }
}

// What turns the queries of `attend`.
BufferOp turn_before(const BufferOp& attend) {
  BufferOp turn;
  turn.kernel = find_launch_kernel("turn", kTurn);
  turn.op.kernel = static_cast<std::int32_t>(turn.kernel - launch_kernels().data());
  turn.op.axis = turn.kernel->axis;
  turn.op.header_at = attend.op.header_at;
  turn.op.count_at = turn.op.header_at + turn.kernel->count;
  for (const char* name : {"q", "q_offset", "table", "heads"}) {
    const std::size_t to = index_of(*turn.kernel, name), from = index_of(*attend.kernel, name);
    turn.op.words[to] = attend.op.words[from];
    turn.buffers[to] = attend.buffers[from];
  }
  set_word(turn, index_of(*turn.kernel, "layer"), static_cast<std::uint64_t>(attend.layer));
  set_word(turn, index_of(*turn.kernel, "dim"), static_cast<std::uint64_t>(attend.k_dim));
  set_word(turn, index_of(*turn.kernel, "turned"), slot_word(launch::kSlotQueries));
  return turn;
}

}  // namespace

std::vector<BufferOp> with_turned_queries(const std::vector<BufferOp>& ops) {
  std::vector<BufferOp> all;
  for (const BufferOp& op : ops) {
    if (op.kernel->name == kAttend) all.push_back(turn_before(op));
    all.push_back(op);
    if (op.kernel->name != kAttend) continue;
    set_word(all.back(), index_of(*op.kernel, "q"), slot_word(launch::kSlotQueries));
    set_word(all.back(), index_of(*op.kernel, "q_offset"), 0);
  }
  return all;
}

std::optional<GraphOps> graph_ops(std::span<const Launch> launches, const GraphPlaces& places, std::string& reason) {
  GraphOps graph;
  Builder builder(launches, places, graph);
  for (const Launch& launch : launches) {
    reason = builder.add(launch);
    if (!reason.empty()) return std::nullopt;
  }
  if (graph.chooses && graph.saw_moved) {
    reason = "the step chose among keys that have moved";
    return std::nullopt;
  }
  if (!places.by_groups) make_norms_own(graph);
  return graph;
}

}  // namespace kvtrie::ops
