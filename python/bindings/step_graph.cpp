// Steps that are replayed in one launch.
#include "prefix_cache/step_graph.h"

#include <memory>

#include "arrays.h"
#include "convert.h"
#include "gil.h"

namespace kvtrie::binding {
namespace {

void init_recording(py::module_& m) {
  py::class_<StepRecording, std::shared_ptr<StepRecording>> c(
      m, "StepRecording", "What this thread launches for a step, until ``finish`` or ``stop``; see ``StepGraphs``.",
      py::release_gil_before_calling_cpp_dtor());
  c.def(
      "finish",
      [](StepRecording& self, const Tensor& logits) { return without_gil([&] { return self.finish(logits); }); },
      py::arg("logits"),
      "``logits``: what the model made of the step, which is complete. Whether later steps can be replayed now.");
  c.def("stop", &StepRecording::stop, "Ends the recording; nothing comes of it.");
  c.def_property_readonly("reason", &StepRecording::reason, "Why there is no graph; empty when there is one.");
}

py::dict stats(const StepGraphs& self) {
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
  init_recording(m);
  py::class_<StepGraphs, std::shared_ptr<StepGraphs>> c(m, "StepGraphs",
                                                        R"(A model's decode steps as one launch each, on CPU devices.

The first step of each number of rows (up to 8) and cache is recorded while the model computes it and proved by replaying
it; later ones are replayed: one launch in place of 50 to 70, with the same bits. For models whose launches depend on
nothing but the number of rows. Where a step cannot be recorded it is computed as ever.)",
                                                        py::release_gil_before_calling_cpp_dtor());
  c.def(py::init(&StepGraphs::create));
  c.def(
      "replay",
      [](StepGraphs& self, Step& step) { return optional_to_python(without_gil([&] { return self.replay(step); })); },
      py::arg("step"), R"(Computes the step, which is complete afterwards; returns its logits.

None, and nothing done, where no such step was recorded. Raises ``ArgumentError`` once a layer of the step was put,
``ClosedError`` once it was dropped.)");
  c.def(
      "record", [](StepGraphs& self, const StepPtr& step) { return without_gil([&] { return self.record(step); }); },
      py::arg("step"), R"(Begins to record what this thread launches; None for steps that cannot be replayed.

Those are steps of more than 8 rows, of caches with recurrent layers, or of a device that is no CPU.)");
  c.def_property_readonly("stats", &stats, R"(A dict of numbers and one text.

``graphs`` now, the ``launches`` that one replay of each stands for, their ``nbytes`` of device memory; ``replays`` and
``refusals`` (recordings that led to no graph) since creation; the ``reason`` of the last refusal.)");
}

}  // namespace kvtrie::binding
