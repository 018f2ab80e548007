// Private to ops/: argument checks with uniform messages, and the few numbers every launch needs.
#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/cell_format.h"
#include "base/error.h"
#include "ops/family.h"
#include "tensor/tensor.h"

namespace kvtrie::ops {

// "float32 [2, 3]" and "[2, 3]", for messages. Written when a message is made and not before: every argument of every
// operation passes checks, and a text costs more than a launch. The objects that they name must outlive the expression
// they are in.
struct Described {
  const Tensor& tensor;
};
struct Shown {
  const Shape& shape;
};
inline Described describe(const Tensor& tensor) noexcept { return {tensor}; }
inline Shown shown(const Shape& shape) noexcept { return {shape}; }
std::ostream& operator<<(std::ostream& out, const Described& described);
std::ostream& operator<<(std::ostream& out, const Shown& shown);

bool is_float(DType dtype) noexcept;

// Each throws kType or kArgument as `[where] name: got ..., allowed ...`.
void check_device(std::string_view where, std::string_view name,
                  const Tensor& tensor);  // defined, on a device, not empty
void check_same_device(std::string_view where, std::string_view name, const Tensor& tensor, const Tensor& other);
void check_rank(std::string_view where, std::string_view name, const Tensor& tensor, int rank);
void check_dtype(std::string_view where, std::string_view name, const Tensor& tensor, DType allowed);
void check_float(std::string_view where, std::string_view name, const Tensor& tensor);
void check_shape(std::string_view where, std::string_view name, const Tensor& tensor, const Shape& allowed);

// The tensor as float32: itself, or converted on the device.
Tensor as_float32(const Tensor& tensor);

// Where a table that lies in several buffers goes on: its rows from `first` on, of `all`.
struct TableRows {
  std::int32_t first = 0, all = 0;
};

// Work-items that share one row: 1 in the serial family; in the work-group family 64, or as many as a group of this
// device may have, if those are fewer: a power of two.
std::int32_t lanes_for(cl::Device& device);
// Floats of the vectors of kernels that are limited by memory or short of work: wider ones than 8 gain nothing there.
std::int32_t row_width(cl::Device& device);
// " -DROW_VW=" and this width: what all these kernels are built with.
std::string row_option(cl::Device& device);

// Like cat, for what every launch builds: no stream, and integers only.
template <class... Texts>
std::string join(const Texts&... texts) {
  std::string text;
  const auto append = [&text](const auto& each) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(each)>>) {
      text += std::to_string(each);
    } else {
      text += each;
    }
  };
  (append(texts), ...);
  return text;
}

// The -D value that names a storage dtype in kernels: 0 float32, 1 float16, 2 bfloat16.
int storage_code(DType dtype);
// -D options of kernels that know how K and V are kept (kernels/cell_format.clh).
std::string format_option(const CellFormats& formats);

// Appends values that are made of int32 to a table of the device; returns where they begin.
template <class Values>
std::int32_t append_ints(std::vector<std::int32_t>& table, const Values& values) {
  const auto at = static_cast<std::int32_t>(table.size());
  const auto* ints = reinterpret_cast<const std::int32_t*>(values.data());
  table.insert(table.end(), ints, ints + std::span(values).size_bytes() / sizeof(std::int32_t));
  return at;
}

inline std::size_t round_up(std::size_t value, std::size_t step) noexcept { return (value + step - 1) / step * step; }
inline std::size_t divide_up(std::size_t value, std::size_t step) noexcept { return (value + step - 1) / step; }

}  // namespace kvtrie::ops
