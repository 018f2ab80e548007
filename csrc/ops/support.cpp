#include "ops/support.h"

#include <algorithm>
#include <bit>

#include "base/cell_format.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/tuning.h"

namespace kvtrie::ops {

std::ostream& operator<<(std::ostream& out, const Described& described) {
  const Tensor& tensor = described.tensor;
  if (!tensor.defined()) return out << "no tensor";
  return out << name_of(tensor.dtype()) << ' ' << shown(tensor.shape()) << (tensor.on_host() ? " on the host" : "");
}

std::ostream& operator<<(std::ostream& out, const Shown& shown) { return out << to_string(shown.shape); }

bool is_float(DType dtype) noexcept {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

void check_device(std::string_view where, std::string_view name, const Tensor& tensor) {
  if (!tensor.defined() || tensor.on_host())
    fail(ErrorKind::kType, where, name, ": got ", describe(tensor), ", allowed a tensor on a device");
  require(tensor.size() > 0, where, name, ": got ", describe(tensor), ", allowed at least one element");
}

void check_same_device(std::string_view where, std::string_view name, const Tensor& tensor, const Tensor& other) {
  check_device(where, name, tensor);
  require(tensor.device() == other.device(), where, name, ": got a tensor on ", tensor.device()->info().name,
          " (another device object), allowed the device of the first argument");
}

void check_rank(std::string_view where, std::string_view name, const Tensor& tensor, int rank) {
  if (tensor.rank() != rank) fail(ErrorKind::kType, where, name, ": got ", describe(tensor), ", allowed rank ", rank);
}

void check_dtype(std::string_view where, std::string_view name, const Tensor& tensor, DType allowed) {
  if (tensor.dtype() != allowed)
    fail(ErrorKind::kType, where, name, ": got ", describe(tensor), ", allowed ", name_of(allowed));
}

void check_float(std::string_view where, std::string_view name, const Tensor& tensor) {
  if (!is_float(tensor.dtype()))
    fail(ErrorKind::kType, where, name, ": got ", describe(tensor), ", allowed float32, float16 or bfloat16");
}

void check_shape(std::string_view where, std::string_view name, const Tensor& tensor, const Shape& allowed) {
  require(tensor.shape() == allowed, where, name, ": got ", describe(tensor), ", allowed ", shown(allowed));
}

Tensor as_float32(const Tensor& tensor) {
  return tensor.dtype() == DType::kFloat32 ? tensor : cast(tensor, DType::kFloat32);
}

std::int32_t lanes_for(cl::Device& device) {
  if (kernel_family(device) != KernelFamily::kWorkGroup) return 1;
  if (const auto known = registry::lanes(device)) return *known;
  auto lanes = static_cast<std::int32_t>(
      std::bit_floor(std::clamp(device.info().max_work_group, 1U, family_row(KernelFamily::kWorkGroup).lanes)));
  const auto limit = [&] {  // of a kernel that stands for all the small ones: sums of rows in local memory
    const std::string options = join("-DLANES=", lanes, row_option(device));
    return static_cast<std::int32_t>(device.group_limit(device.kernel("rows", "rms_norm", options)));
  };
  while (lanes > 1 && limit() < lanes) lanes /= 2;
  registry::set_lanes(device, lanes);
  return lanes;
}

std::int32_t row_width(cl::Device& device) { return std::min(vector_width(device), 8); }

std::string row_option(cl::Device& device) { return join(" -DROW_VW=", row_width(device)); }

std::string format_option(const CellFormats& formats) {
  const std::string of_k = join(" -DCELL_FORMAT=", int{formats.k->code});
  return formats.alike() ? of_k : of_k + join(" -DV_FORMAT=", int{formats.v->code});
}

int storage_code(DType dtype) {
  const CellFormat* format = plain_format(dtype);
  if (format != nullptr) return format->code;
  fail(ErrorKind::kType, "ops", "dtype: got ", name_of(dtype), ", allowed float32, float16 or bfloat16");
}

}  // namespace kvtrie::ops
