// Private to ops/: launches of kernels/experts.cl, each proved before its first use. REQUIRES of all: checked
// arguments; `y` is what they write.
#pragma once

#include "ops/experts.h"

namespace kvtrie::ops {

void launch_route(const Tensor& scores, Weighting weighting, const Routes& routes);
void launch_route_biased(const Tensor& scores, Weighting weighting, const Ranking& ranking, const Routes& routes);
void launch_scale_rows(const Tensor& x, const Tensor& factors, const Tensor& y);
void launch_weighted_sum(const Tensor& x, const Tensor& factors, const Tensor& y);  // factors: may be undefined

}  // namespace kvtrie::ops
