// Private to ops/: which of a recorded step's buffers hold what comes anew with each step.
//
// Threads: pure.
#pragma once

#include "cl/launch_recorder.h"
#include "ops/launch_graph.h"
#include "ops/launch_graph_ops.h"

namespace kvtrie::ops {

// Uploads are told by the numbers that they hold. REQUIRES: further inputs differ from each other, from the ids and
// from the positions.
GraphPlaces places_of(const cl::LaunchRecorder& recorded, const RecordedInputs& inputs, const Tensor& out);

}  // namespace kvtrie::ops
