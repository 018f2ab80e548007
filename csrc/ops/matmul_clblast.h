// Private to ops/: products by CLBlast, with parameters of ours where its own are far from the best.
//
// CLBlast has tuned parameters for devices it knows and defaults for the others; on CPU devices the defaults reach a
// tenth of the peak. It accepts any parameters, and bad ones give wrong products without an error, so a set is used
// only after its products agreed with the reference on this device and driver.
//
// Threads: every function may be called from any thread. Parameters are CLBlast's, for the whole process.
#pragma once

#include <string>
#include <vector>

#include "cl/clblast.h"
#include "ops/matmul.h"

namespace kvtrie::ops {

struct BlasSet {
  std::string kernel;  // or a routine
  cl::BlasParameters parameters;
};
// The settings for a kind of device; empty: CLBlast's own.
std::vector<BlasSet> blas_sets(cl::DeviceKind kind);
// Puts `sets` in place when their products agree with the reference, else what was there before. Whether they are.
bool apply_blas_sets(const cl::DevicePtr& device, const std::vector<BlasSet>& sets);

// REQUIRES of all: checked arguments; float32.
bool clblast_works(const cl::DevicePtr& device, bool transpose_w);
void launch_clblast(const Tensor& x, const Tensor& w, bool transpose_w, const Tensor& y);

}  // namespace kvtrie::ops
