#include "base/cell_format.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/convert.h"

namespace kvtrie {
namespace {

void store_floats(const float* numbers, std::size_t count, std::byte* row) noexcept {
  std::memcpy(row, numbers, count * sizeof(float));
}
void load_floats(const std::byte* row, std::size_t count, float* numbers) noexcept {
  std::memcpy(numbers, row, count * sizeof(float));
}

template <std::uint16_t (*narrow)(float) noexcept>
void store_16(const float* numbers, std::size_t count, std::byte* row) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t bits = narrow(numbers[i]);
    std::memcpy(row + i * sizeof bits, &bits, sizeof bits);
  }
}
template <float (*widen)(std::uint16_t) noexcept>
void load_16(const std::byte* row, std::size_t count, float* numbers) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, row + i * sizeof bits, sizeof bits);
    numbers[i] = widen(bits);
  }
}

// A new format is an entry here, its loads and stores in kernels/cell_format.clh, and what docs/format.md lists.
constexpr std::array<CellFormat, 3> kFormats = {{
    {"float32", DType::kFloat32, DType::kFloat32, 1, 4, 0, true, store_floats, load_floats},
    {"float16", DType::kFloat16, DType::kFloat16, 1, 2, 1, true, store_16<float_to_half>, load_16<half_to_float>},
    {"bfloat16", DType::kBFloat16, DType::kBFloat16, 1, 2, 2, false, store_16<float_to_bfloat16>,
     load_16<bfloat16_to_float>},
}};

static_assert([] {
  for (std::size_t i = 0; i < kFormats.size(); ++i)
    if (kFormats[i].code != i) return false;
  return true;
}());

}  // namespace

std::span<const CellFormat> cell_formats() noexcept { return kFormats; }

const CellFormat* plain_format(DType dtype) noexcept {
  const auto found = std::find_if(kFormats.begin(), kFormats.end(),
                                  [dtype](const CellFormat& each) { return each.plain() && each.rows == dtype; });
  return found == kFormats.end() ? nullptr : &*found;
}

const CellFormat* find_cell_format(std::string_view name) noexcept {
  const auto found = std::find_if(kFormats.begin(), kFormats.end(),
                                  [name](const CellFormat& each) { return each.in_caches && name == each.name; });
  return found == kFormats.end() ? nullptr : &*found;
}

const std::string& cell_format_names() {
  static const std::string names = [] {
    std::string text, last;
    for (const CellFormat& each : kFormats) {
      if (!each.in_caches) continue;
      if (!last.empty()) text += (text.empty() ? "" : ", ") + last;
      last = each.name;
    }
    return text.empty() ? last : text + " or " + last;
  }();
  return names;
}

}  // namespace kvtrie
