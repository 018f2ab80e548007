// Private to ops/: launches of kernels/recurrent.cl, each proved before its first use.
// REQUIRES of all: checked arguments; `y` is what they write. A state tensor that no sequence reads or writes may be
// undefined.
#pragma once

#include "ops/recurrent.h"

namespace kvtrie::ops {

void launch_conv(const Tensor& x, const Tensor& weight, const Tensor& states_in, const Tensor& states_out,
                 const DeviceStateRuns& runs, const Tensor& y);

struct DeltaTensors {
  Tensor q, k, v, g, beta;
};
void launch_delta(const DeltaTensors& rows, const Tensor& states_in, const Tensor& states_out,
                  const DeviceStateRuns& runs, const Tensor& y);

void launch_ssd(const SsdInputs& inputs, const Tensor& states_in, const Tensor& states_out, const DeviceStateRuns& runs,
                const Tensor& y);

}  // namespace kvtrie::ops
