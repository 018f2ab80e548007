// Steps that are replayed in one launch.
#include "replay/step_graph.h"

#include <pybind11/typing.h>

#include <memory>

#include "arrays.h"
#include "convert.h"
#include "gil.h"

namespace kvtrie::binding {
namespace {

// An exception of `launch` passes through; the recording ends with the function.
Tensor compute(StepGraphs& self, const StepPtr& step, const py::typing::Callable<Tensor()>& launch) {
  Tensor logits = without_gil([&] { return self.replay(*step); });
  if (logits.defined()) return logits;
  const std::shared_ptr<StepRecording> recording = without_gil([&] { return self.record(step); });
  const py::object made = launch();
  if (!py::isinstance<Tensor>(made)) refuse_type(made, "StepGraphs.compute", "launch()", "a Tensor");
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
depend on nothing but the number of rows, and which read nothing of the step but its tokens and what ``attend_qkv`` adds.
A step that cannot be recorded is computed as usual. Graphs go with this object or with their cache, whichever goes
first. Threads: any.)",
                                                        py::release_gil_before_calling_cpp_dtor());
  c.def(py::init(&StepGraphs::create));
  c.def("compute", &compute, py::arg("step"), py::arg("launch"), R"(The logits of a step, which is complete afterwards.

Replays the step, or calls ``launch()``, which computes it and returns its logits [rows, vocab], a float32 Tensor. What
that raises passes through. Raises ``ArgumentError`` once a layer of a step that would be replayed was put,
``ClosedError`` once it was dropped.)");
  refuse_pickling(c, "making it again: the graphs stay on the device");
  c.def_property_readonly("stats", &stats, R"(A dict of numbers and one text.

``graphs`` now, the ``launches`` that one replay of each stands for, their ``nbytes`` of device memory; ``replays`` and
``refusals`` (recordings that led to no graph) since creation; the ``reason`` of the last refusal.)");
}

}  // namespace kvtrie::binding
