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

// A `share` of the magnitude that has these bits, as float16, and one step more where `reach` times it is less than the
// magnitude: a NaN where some number has none.
std::uint16_t scale_of(std::uint32_t largest, float share, float reach) noexcept {
  const float magnitude = std::bit_cast<float>(largest);
  if (!(magnitude <= std::numeric_limits<float>::max())) return kNaN;
  std::uint16_t bits = float_to_half(magnitude * share);
  if (std::bit_cast<std::uint32_t>(reach * half_to_float(bits)) < largest) ++bits;
  return bits >= kInfinity ? kNaN : bits;
}

void store_block(const float* numbers, std::byte* block) noexcept {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < kNumbers; ++i) largest = std::max(largest, std::bit_cast<std::uint32_t>(numbers[i]) << 1);
  const std::uint16_t bits = scale_of(largest >> 1, 1.0f / 127.0f, 127.5f);
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

// Blocks of q4h, likewise what kernels/cell_q4h.clh writes.
constexpr std::size_t kCodeBytes = kNumbers / 2, kTurnedBytes = kScaleBytes + kCodeBytes;
constexpr std::uint32_t kSign = 0x80000000U;

// H x * factor. Every order of these sums that ends in the same matrix would do for readers, one does for bytes.
void turn(float* x, float factor) noexcept {
  for (std::size_t apart = 1; apart < kNumbers; apart *= 2) {
    for (std::size_t i = 0; i < kNumbers / 2; ++i) {
      const std::size_t a = i / apart * 2 * apart + i % apart;
      const float low = x[a], high = x[a + apart];
      x[a] = low + high;
      x[a + apart] = low - high;
    }
  }
  for (std::size_t i = 0; i < kNumbers; ++i) x[i] *= factor;
}

// Of a number whose bits are these, for a scale above 0.
unsigned code_of(std::uint32_t bits, float scale) noexcept {
  const float magnitude = std::bit_cast<float>(bits & ~kSign);
  int steps = 0;
  for (int step = 0; step < 8; ++step) steps += magnitude > (static_cast<float>(step) + 0.5f) * scale ? 1 : 0;
  return static_cast<unsigned>((bits & kSign) != 0 ? 8 - steps : std::min(8 + steps, 15));
}

void store_turned_block(const float* numbers, std::byte* block) noexcept {
  std::array<float, kNumbers> z;
  std::copy_n(numbers, kNumbers, z.begin());
  turn(z.data(), 0.25f);
  std::uint32_t largest = 0, negative = 0;
  for (const float each : z) {
    const auto bits = std::bit_cast<std::uint32_t>(each);
    largest = std::max(largest, bits & ~kSign);
    if ((bits & kSign) != 0) negative = std::max(negative, bits & ~kSign);
  }
  std::uint16_t bits = scale_of(largest, 0.125f, 8.5f);
  const float scale = bits == kNaN ? 0.0f : half_to_float(bits);
  const bool flip = scale > 0.0f && negative != largest;
  if (flip) bits |= 0x8000;
  std::memcpy(block, &bits, sizeof bits);
  const auto code = [&](std::size_t i) {
    const std::uint32_t own = scale > 0.0f ? std::bit_cast<std::uint32_t>(z[i]) : 0;
    return code_of(flip ? own ^ kSign : own, scale);
  };
  for (std::size_t i = 0; i < kCodeBytes; ++i)
    block[kScaleBytes + i] = static_cast<std::byte>(code(i) | code(i + kCodeBytes) << 4);
}

void store_q4h(const float* numbers, std::size_t count, std::byte* row) noexcept {
  for (std::size_t at = 0; at < count; at += kNumbers, row += kTurnedBytes) store_turned_block(numbers + at, row);
}
void load_q4h(const std::byte* row, std::size_t count, float* numbers) noexcept {
  for (std::size_t at = 0; at < count; at += kNumbers, row += kTurnedBytes) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, row, sizeof bits);
    const float scale = half_to_float(bits);
    for (std::size_t i = 0; i < kNumbers; ++i) {
      const auto codes = std::to_integer<unsigned>(row[kScaleBytes + i % kCodeBytes]);
      const unsigned code = i < kCodeBytes ? codes & 15 : codes >> 4;
      numbers[at + i] = scale * static_cast<float>(static_cast<int>(code) - 8);
    }
    turn(numbers + at, 0.125f);
  }
}

// A new format is an entry here, its loads and stores in kernels/cell_format.clh, and what docs/format.md lists.
constexpr std::array<CellFormat, 5> kFormats = {{
    {"float32", DType::kFloat32, DType::kFloat32, 1, 4, 0, true, store_floats, load_floats},
    {"float16", DType::kFloat16, DType::kFloat16, 1, 2, 1, true, store_16<float_to_half>, load_16<half_to_float>},
    {"bfloat16", DType::kBFloat16, DType::kBFloat16, 1, 2, 2, false, store_16<float_to_bfloat16>,
     load_16<bfloat16_to_float>},
    {"q8_0", DType::kFloat32, DType::kFloat16, kNumbers, kBytes, 3, true, store_q8_0, load_q8_0},
    {"q4h", DType::kFloat32, DType::kFloat16, kNumbers, kTurnedBytes, 4, true, store_q4h, load_q4h, true},
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
