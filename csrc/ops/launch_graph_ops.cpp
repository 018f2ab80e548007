#include "ops/launch_graph_ops.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "base/error.h"

namespace kvtrie::ops {
namespace {

using Launch = cl::LaunchRecorder::Launch;

// A kernel that graphs know: how many arguments it has, and which of its buffers are read and written.
struct Known {
  const char *program, *name;
  GraphKernel kernel;
  std::size_t arguments;
  std::vector<std::size_t> reads, writes;
};

const std::vector<Known>& known_kernels() {
  static const std::vector<Known> known = {
      {"copy", "embedding", GraphKernel::kEmbedding, 11, {0, 2}, {4}},
      {"rows", "rms_norm", GraphKernel::kRmsNorm, 9, {0, 2}, {4}},
      {"elementwise", "add", GraphKernel::kAdd, 9, {0, 2}, {4}},
      {"elementwise", "mul", GraphKernel::kMul, 9, {0, 2}, {4}},
      {"matmul", "matmul_packed", GraphKernel::kMatmul, 15, {0, 2, 4}, {8}},
      {"matmul", "matmul_gated", GraphKernel::kGated, 10, {0, 2}, {4}},
      {"qkv", "put_qkv", GraphKernel::kPutQkv, 25, {0, 2, 3, 7, 10}, {15, 17, 19}},
      {"attention", "attend_tiles", GraphKernel::kAttend, 30, {0, 2, 4, 10, 20, 23}, {26, 28, 29}},
      {"attention_merge", "attend_merge", GraphKernel::kMerge, 11, {0, 1, 2, 6}, {9}},
      {"matmul", "unpack_rows", GraphKernel::kUnpack, 11, {0, 2}, {4}},
  };
  return known;
}

const Known* known_of(const Launch& launch) {
  const auto is_it = [&launch](const Known& known) {
    return launch.program == known.program && launch.name == known.name && launch.arguments.size() == known.arguments;
  };
  const auto found = std::find_if(known_kernels().begin(), known_kernels().end(), is_it);
  return found == known_kernels().end() ? nullptr : &*found;
}

const Known& known_of(GraphKernel kernel) { return known_kernels()[static_cast<std::size_t>(kernel)]; }

// Arguments of the kernels by number: kernels/copy.cl, qkv.cl, attention.cl, attention_merge.cl, rows.cl.
constexpr std::size_t kIds = 2, kQkvTable = 2, kAttendTable = 10, kAttendHeads = 16, kAttendSinks = 23, kAttendOut = 26,
                      kAttendPartialOut = 28, kAttendPartialStats = 29, kMergeHeads = 5, kMergeSinks = 6, kMergeOut = 9,
                      kNormX = 0, kNormY = 4, kNormOffset = 5, kNormDim = 6;

bool contains(const std::vector<_cl_mem*>& buffers, _cl_mem* buffer) {
  return std::find(buffers.begin(), buffers.end(), buffer) != buffers.end();
}

void set_word(BufferOp& op, std::size_t at, std::uint64_t word) {
  op.op.words[at] = word;
  op.buffers[at] = nullptr;
}

// The number that `-DNAME=` gives in a kernel's options.
std::uint64_t option_of(const Launch& launch, const std::string& name) {
  const std::size_t at = launch.options.find(cat("-D", name, "="));
  ensure(at != std::string::npos, "launch_graph", "options of ", launch.name, ": got \"", launch.options,
         "\", allowed some with ", name);
  return std::stoull(launch.options.substr(at + name.size() + 3));
}

// Products of one step are of several forms: one for each way in which weights are kept, each with its own tile. A form
// is the options but for what is multiplied behind it, in order of their names.
constexpr std::size_t kMaxForms = 4;  // MATMUL_SETS in kernels/launch_graph.cl
using Form = std::map<std::string, std::string>;

bool is_product(const Launch& launch) { return launch.program == std::string_view("matmul"); }

Form options_by_name(const Launch& launch) {
  Form options;
  std::istringstream flags(launch.options);
  for (std::string flag; flags >> flag;) {
    const std::size_t end = flag.find('=');
    options.emplace(flag.substr(2, end - 2), end == std::string::npos ? "1" : flag.substr(end + 1));
  }
  return options;
}

Form form_of(const Launch& launch) {
  Form form = options_by_name(launch);
  form.erase("GATED");
  return form;
}

// The forms of the products among `launches`, each with the gate that some of them have.
std::vector<Form> forms_of(std::span<const Launch> launches) {
  std::vector<Form> forms;
  for (const Launch& launch : launches) {
    if (!is_product(launch)) continue;
    const Form form = form_of(launch);
    if (std::find(forms.begin(), forms.end(), form) == forms.end()) forms.push_back(form);
  }
  return forms;
}

// The launch as it is, without what differs from step to step.
BufferOp plain_op(const Launch& launch, GraphKernel kernel) {
  BufferOp op;
  op.op.kernel = kernel;
  for (std::size_t i = 0; i < 3; ++i)
    op.op.size[i] = static_cast<std::int32_t>(std::max<std::size_t>(launch.global[i], 1));
  for (std::size_t i = 0; i < launch.arguments.size(); ++i) {
    op.op.words[i] = launch.arguments[i].value;
    op.buffers[i] = launch.arguments[i].buffer;
  }
  return op;
}

// Joins what attention leaves in parts; launched in the recorded step only if there were any.
BufferOp merge_op(const BufferOp& attend) {
  BufferOp op;
  op.op.kernel = GraphKernel::kMerge;
  op.op.plan = attend.op.plan;
  op.op.size[1] = static_cast<std::int32_t>(attend.op.words[kAttendHeads]);
  set_word(op, 0, kSlot | kSlotPartialOut);
  set_word(op, 1, kSlot | kSlotPartialStats);
  op.op.words[kMergeHeads] = attend.op.words[kAttendHeads];
  for (const auto& [to, from] : {std::pair(kMergeSinks, kAttendSinks), std::pair(kMergeSinks + 1, kAttendSinks + 1),
                                 std::pair(kMergeSinks + 2, kAttendSinks + 2), std::pair(kMergeOut, kAttendOut),
                                 std::pair(kMergeOut + 1, kAttendOut + 1)}) {
    op.op.words[to] = attend.op.words[from];
    op.buffers[to] = attend.buffers[from];
  }
  return op;
}

// Turns launches into operations one by one.
class Builder {
 public:
  Builder(std::span<const Launch> launches, const GraphPlaces& places, GraphOps& graph)
      : places_(places), graph_(graph), forms_(forms_of(launches)) {}

  // Why the launch cannot be replayed; empty when it can.
  std::string add(const Launch& launch) {
    const Known* known = known_of(launch);
    if (known == nullptr) return cat("kernel ", launch.program, ".", launch.name, " is not one that graphs know");
    if (launch.local[0] > 1 || launch.local[1] > 1 || launch.local[2] > 1)
      return cat("kernel ", launch.name, " was launched with groups of several work-items");
    if (known->kernel == GraphKernel::kMerge) return "";  // made with its attend
    BufferOp op = plain_op(launch, known->kernel);
    if (is_product(launch))
      op.op.plan = static_cast<std::int32_t>(std::find(forms_.begin(), forms_.end(), form_of(launch)) - forms_.begin());
    if (std::string why = bind(launch, op); !why.empty()) return why;
    for (_cl_mem*& buffer : op.buffers) {
      if (buffer != nullptr && (contains(places_.uploads, buffer) || buffer == places_.ids))
        return cat("kernel ", launch.name, " reads a tensor that came from the host in the step");
    }
    graph_.ops.push_back(op);
    if (known->kernel == GraphKernel::kAttend) graph_.ops.push_back(merge_op(op));
    return "";
  }

 private:
  // Names in place of the buffers that differ from step to step.
  std::string bind(const Launch& launch, BufferOp& op) {
    switch (op.op.kernel) {
      case GraphKernel::kEmbedding:
      case GraphKernel::kUnpack:
        if (op.buffers[kIds] == places_.ids) set_word(op, kIds, step_word(places_.ids_at));
        break;
      case GraphKernel::kPutQkv: {
        const auto cache = std::find(places_.rows.begin(), places_.rows.end(), op.buffers[kQkvTable]);
        if (cache == places_.rows.end()) return "rows went to cells of no cache of the step";
        set_word(op, kQkvTable, step_word(places_.rows_at[cache - places_.rows.begin()]));
        break;
      }
      case GraphKernel::kAttend:
        if (std::string why = bind_attend(launch, op); !why.empty()) return why;
        break;
      default:
        break;
    }
    for (std::size_t i = 0; i < op.buffers.size(); ++i)
      if (op.buffers[i] != nullptr && op.buffers[i] == places_.logits) set_word(op, i, kSlot | kSlotLogits);
    return "";
  }

  std::string bind_attend(const Launch& launch, BufferOp& op) {
    const auto cache = std::find(places_.plans.begin(), places_.plans.end(), op.buffers[kAttendTable]);
    if (cache == places_.plans.end()) return "attention was planned by no cache of the step";
    op.op.plan = static_cast<std::int32_t>(cache - places_.plans.begin());
    op.op.size[0] = 1;
    set_word(op, kAttendTable, 0);
    set_word(op, kAttendPartialOut, kSlot | kSlotPartialOut);
    set_word(op, kAttendPartialStats, kSlot | kSlotPartialStats);
    graph_.partial_heads = std::max(graph_.partial_heads, op.op.words[kAttendHeads]);
    graph_.partial_dim = std::max(graph_.partial_dim, option_of(launch, "V_DIM"));
    return "";
  }

  static std::uint64_t step_word(std::int32_t at) { return kSlot | (kSlotStep + static_cast<std::uint64_t>(at)); }

  const GraphPlaces& places_;
  GraphOps& graph_;
  const std::vector<Form> forms_;
};

bool names(const BufferOp& op, const std::vector<std::size_t>& arguments, _cl_mem* buffer) {
  return std::any_of(arguments.begin(), arguments.end(), [&](std::size_t i) { return op.buffers[i] == buffer; });
}
bool reads(const BufferOp& op, _cl_mem* buffer) { return names(op, known_of(op.op.kernel).reads, buffer); }
bool writes(const BufferOp& op, _cl_mem* buffer) { return names(op, known_of(op.op.kernel).writes, buffer); }

// One past the last operation that reads what the norm at `at` writes. 0: the norm must be shared, since its input
// changes before that: a worker that is late could still be reading it.
std::size_t readers_end(const std::vector<BufferOp>& ops, std::size_t at) {
  _cl_mem *const x = ops[at].buffers[kNormX], *const y = ops[at].buffers[kNormY];
  if (y == nullptr || y == x || ops[at].op.words[kNormOffset] != 0) return 0;
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
  for (const std::size_t argument : known_of(op.op.kernel).reads)
    if (op.buffers[argument] == buffer) set_word(op, argument, word);
}

// Lets every worker norm for itself: to wait for one that norms a row takes longer.
void make_norms_own(GraphOps& graph) {
  std::map<_cl_mem*, std::uint64_t> places;
  std::vector<BufferOp>& ops = graph.ops;
  for (std::size_t at = 0; at < ops.size(); ++at) {
    if (ops[at].op.kernel != GraphKernel::kRmsNorm) continue;
    const std::size_t end = readers_end(ops, at);
    if (end == 0) continue;
    _cl_mem* const y = ops[at].buffers[kNormY];
    const std::uint64_t floats = static_cast<std::uint64_t>(ops[at].op.size[1]) * ops[at].op.words[kNormDim];
    const auto [place, is_new] = places.emplace(y, graph.own_floats);
    if (is_new) graph.own_floats += (floats + 15) / 16 * 16;
    ops[at].op.own = 1;
    set_word(ops[at], kNormY, kOwn | place->second);
    for (std::size_t i = at + 1; i < end; ++i) read_from(ops[i], y, kOwn | place->second);
  }
}

}  // namespace

std::optional<GraphOps> graph_ops(std::span<const Launch> launches, const GraphPlaces& places, std::string& reason) {
  GraphOps graph;
  Builder builder(launches, places, graph);
  for (const Launch& launch : launches) {
    reason = builder.add(launch);
    if (!reason.empty()) return std::nullopt;
  }
  make_norms_own(graph);
  return graph;
}

std::optional<std::string> graph_options(std::span<const Launch> launches, std::string& reason) {
  std::map<std::string, std::string> options;
  const std::vector<Form> forms = forms_of(launches);
  if (forms.size() > kMaxForms) {
    reason = cat("the step has products of ", forms.size(), " forms, allowed ", kMaxForms);
    return std::nullopt;
  }
  const auto add = [&](const std::string& name, const std::string& value) {
    const auto [known, is_new] = options.emplace(name, value);
    if (is_new || known->second == value) return true;
    reason = cat("kernels of the step were built with -D", name, "=", known->second, " and with ", value);
    return false;
  };
  for (const Launch& launch : launches) {
    if (known_of(launch) == nullptr) {
      reason = cat("kernel ", launch.program, ".", launch.name, " is not one that graphs know");
      return std::nullopt;
    }
    const auto form = std::find(forms.begin(), forms.end(), form_of(launch)) - forms.begin();
    const std::string number = is_product(launch) && form > 0 ? cat("_SET", form) : "";
    for (const auto& [name, value] : options_by_name(launch)) {
      if (name == "OP" || name == "LANES") continue;  // graphs have all of the one, and 1 of the other
      if (!add(name + number, value)) return std::nullopt;
    }
  }
  for (std::size_t form = 1; form < forms.size(); ++form)  // what matmul_again.clh asks for, given or not
    for (const char* name : {"BLOCKED", "NEXT_SLICE", "AHEAD", "GATED"}) options.emplace(cat(name, "_SET", form), "0");
  if (forms.size() > 1) add("MATMUL_SETS", cat(forms.size()));
  std::string text;
  for (const auto& [name, value] : options) text += cat(text.empty() ? "-D" : " -D", name, "=", value);
  return text;
}

}  // namespace kvtrie::ops
