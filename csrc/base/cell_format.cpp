#include "base/cell_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

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

// Blocks of q8_0, byte by byte what kernels/cell_format.clh writes (there: why the numbers are these).
constexpr std::size_t kNumbers = 32, kScaleBytes = 2, kBytes = kScaleBytes + kNumbers;
constexpr std::uint16_t kInfinity = 0x7c00, kNaN = 0x7e00;

// The scale of a block whose largest magnitude has these bits, as float16: a NaN where some number has none.
std::uint16_t scale_of(std::uint32_t largest) noexcept {
  const float magnitude = std::bit_cast<float>(largest);
  if (!(magnitude <= std::numeric_limits<float>::max())) return kNaN;
  std::uint16_t bits = float_to_half(magnitude * (1.0f / 127.0f));
  if (std::bit_cast<std::uint32_t>(127.5f * half_to_float(bits)) < largest) ++bits;
  return bits >= kInfinity ? kNaN : bits;
}

void store_block(const float* numbers, std::byte* block) noexcept {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < kNumbers; ++i) largest = std::max(largest, std::bit_cast<std::uint32_t>(numbers[i]) << 1);
  const std::uint16_t bits = scale_of(largest >> 1);
  std::memcpy(block, &bits, sizeof bits);
  const double scale = bits == kNaN ? 0.0 : half_to_float(bits);
  for (std::size_t i = 0; i < kNumbers; ++i) {
    // A quotient of these in double is a half only where the exact one is.
    const double whole = scale > 0.0 ? std::nearbyint(double{numbers[i]} / scale) : 0.0;
    block[kScaleBytes + i] = static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(whole, -127.0, 127.0)));
  }
}

void store_q8_0(const float* numbers, std::size_t count, std::byte* row) noexcept {
  for (std::size_t at = 0; at < count; at += kNumbers, row += kBytes) store_block(numbers + at, row);
}
void load_q8_0(const std::byte* row, std::size_t count, float* numbers) noexcept {
  for (std::size_t at = 0; at < count; at += kNumbers, row += kBytes) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, row, sizeof bits);
    const float scale = half_to_float(bits);
    for (std::size_t i = 0; i < kNumbers; ++i)
      numbers[at + i] = scale * static_cast<float>(static_cast<std::int8_t>(row[kScaleBytes + i]));
  }
}

// A new format is an entry here, its loads and stores in kernels/cell_format.clh, and what docs/format.md lists.
constexpr std::array<CellFormat, 4> kFormats = {{
    {"float32", DType::kFloat32, DType::kFloat32, 1, 4, 0, true, store_floats, load_floats},
    {"float16", DType::kFloat16, DType::kFloat16, 1, 2, 1, true, store_16<float_to_half>, load_16<half_to_float>},
    {"bfloat16", DType::kBFloat16, DType::kBFloat16, 1, 2, 2, false, store_16<float_to_bfloat16>,
     load_16<bfloat16_to_float>},
    {"q8_0", DType::kFloat32, DType::kFloat16, kNumbers, kBytes, 3, true, store_q8_0, load_q8_0},
}};

constexpr std::uint8_t kPairs = 16;  // codes of pairs begin here
static_assert(kFormats.size() < kPairs);

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

std::string CellFormats::name() const { return alike() ? k->name : std::string(k->name) + "/" + v->name; }

std::uint8_t CellFormats::code() const noexcept {
  return static_cast<std::uint8_t>(alike() ? k->code : k->code + kPairs * (1 + v->code));
}

DType CellFormats::word() const noexcept { return k->word_bytes() <= v->word_bytes() ? k->word : v->word; }

std::optional<CellFormats> find_cell_formats(std::string_view name) noexcept {
  const std::size_t end = name.find('/');
  const CellFormat* k = find_cell_format(name.substr(0, end));
  const CellFormat* v = end == name.npos ? k : find_cell_format(name.substr(end + 1));
  if (k == nullptr || v == nullptr) return {};
  return CellFormats(k, v);
}

std::optional<CellFormats> cell_formats_of(std::uint8_t code) noexcept {
  const std::size_t k = code % kPairs, v = code < kPairs ? k : code / kPairs - 1;
  if (k >= kFormats.size() || v >= kFormats.size() || (k == v && code >= kPairs)) return {};
  return CellFormats(&kFormats[k], &kFormats[v]);
}

const std::string& cell_formats_names() {
  static const std::string names = cell_format_names() + ", or two of them for K and V";
  return names;
}

}  // namespace kvtrie
