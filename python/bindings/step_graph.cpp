// Steps that are replayed in one launch.
#include "replay/step_graph.h"

#include <pybind11/typing.h>

#include <cstring>
#include <memory>

#include "arrays.h"
#include "convert.h"
#include "gil.h"

namespace kvtrie::binding {
namespace {

constexpr const char* kCompute = "StepGraphs.compute";

ops::FurtherInputs further_of(const py::object& value) {
  ops::FurtherInputs further;
  for (const py::object& item : to_items(value, kCompute, "further", "a list of arrays")) {
    const HostArray source = to_host_array(item, {}, kCompute, "further");
    require(source.dtype == DType::kInt32 || source.dtype == DType::kFloat32, kCompute, "further: got ",
            name_of(source.dtype), ", allowed int32 or float32");
    std::vector<std::int32_t>& numbers = further.emplace_back(static_cast<std::size_t>(source.array.size()));
    std::memcpy(numbers.data(), source.array.data(), 4 * numbers.size());
  }
  return further;
}

// An exception of `launch` passes through; the recording ends with the function.
Tensor compute(StepGraphs& self, const StepPtr& step, const py::typing::Callable<Tensor()>& launch,
               const Typed<"Sequence[ArrayLike]">& further) {
  const ops::FurtherInputs inputs = further_of(further);
  Tensor logits = without_gil([&] { return self.replay(*step, inputs); });
  if (logits.defined()) return logits;
  const std::shared_ptr<StepRecording> recording = without_gil([&] { return self.record(step, inputs); });
  const py::object made = launch();
  if (!py::isinstance<Tensor>(made)) refuse_type(made, kCompute, "launch()", "a Tensor");
  logits = made.cast<Tensor>();
  if (recording != nullptr) without_gil([&] { recording->finish(logits); });
  return logits;
}

Typed<"dict[str, Any]"> stats(const StepGraphs& self) {
  const StepGraphs::Stats stats = without_gil([&] { return self.stats(); });
  py::dict values;
  values["graphs"] = stats.graphs;
  values["launches"] = stats.launches;
  values["nbytes"] = stats.bytes;
  values["replays"] = stats.replays;
  values["refusals"] = stats.refusals;
  values["reason"] = stats.reason;
  return values;
}

}  // namespace

void init_step_graph(py::module_& m) {
  py::class_<StepGraphs, std::shared_ptr<StepGraphs>> c(m, "StepGraphs",
                                                        R"(A model's decode steps as one launch each, on CPU devices.

The first step of each cache and number of rows, up to 8, is recorded while the model computes it, and proved by
replaying it; later ones are replayed: one launch in place of 50 to 70, with the same bits. For models whose launches
depend on nothing but the number of rows, and which read nothing of the step but its tokens, what ``attend_qkv`` adds and
further inputs.
A step that cannot be recorded is computed as usual. Graphs go with this object or with their cache, whichever goes
first. Threads: any.)",
                                                        py::release_gil_before_calling_cpp_dtor());
  c.def(py::init(&StepGraphs::create));
  c.def("compute", &compute, py::arg("step"), py::arg("launch"), py::arg("further") = py::tuple(),
        R"(The logits of a step, which is complete afterwards.

Replays the step, or calls ``launch()``, which computes it and returns its logits [rows, vocab], a float32 Tensor. What
that raises passes through. ``further``: arrays of int32 or float32 that ``launch`` hands to the operations beside the
step's tokens, each in one piece: as many of the same sizes in each step of so many rows. What a replayed step looks up
outside of a table is NaN. Raises
``ArgumentError`` once a layer of a step that would be replayed was put, or for other sizes, ``ClosedError`` once it was
dropped.)");
  refuse_pickling(c, "making it again: the graphs stay on the device");
  c.def_property_readonly("stats", &stats, R"(A dict of numbers and one text.

``graphs`` now, the ``launches`` that one replay of each stands for, their ``nbytes`` of device memory; ``replays`` and
``refusals`` (recordings that led to no graph) since creation; the ``reason`` of the last refusal.)");
}

}  // namespace kvtrie::binding
