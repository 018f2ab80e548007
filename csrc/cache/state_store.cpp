#include "cache/state_store.h"

#include "base/checked.h"

namespace kvtrie {
namespace {

constexpr const char* kStateShape = "state_shape";
constexpr const char* kBytes = "bytes of one state";

std::uint64_t product(std::uint64_t a, std::uint64_t b) { return checked_mul(a, b, kStateShape, kBytes); }

void require_together(std::uint64_t value, const char* name, std::uint64_t other, const char* other_name) {
  require((value == 0) == (other == 0), kStateShape, name, ": got ", value, " with ", other_name, " ", other,
          ", allowed both 0 or both 1 or more");
}

}  // namespace

std::uint64_t StateShape::conv_bytes() const { return product(product(conv_tail, conv_dim), size_of(dtype)); }

std::uint64_t StateShape::delta_bytes() const {
  return product(product(product(v_heads, v_dim), k_dim), size_of(DType::kFloat32));
}

std::uint64_t StateShape::bytes_per_slot() const {
  return product(checked_add(conv_bytes(), delta_bytes(), kStateShape, kBytes), layers);
}

std::uint64_t StateShape::bytes() const {
  return checked_mul<std::uint64_t>(bytes_per_slot(), slots, kStateShape, "bytes of the pool");
}

void validate(const StateShape& shape) {
  constexpr std::uint32_t kMaxSlots = 0x7fffffff;
  require(shape.layers >= 1, kStateShape, "layers: got 0, allowed 1 or more");
  require_together(shape.conv_dim, "conv_dim", shape.conv_tail, "conv_tail");
  require_together(shape.v_dim, "v_dim", shape.v_heads, "v_heads");
  require_together(shape.k_dim, "k_dim", shape.v_heads, "v_heads");
  require(shape.has_conv() || shape.has_delta(), kStateShape,
          "conv_tail, v_heads: got 0 and 0, allowed one of them 1 or more");
  require(shape.slots >= 1 && shape.slots <= kMaxSlots, kStateShape, "capacity: got ", shape.slots, ", allowed 1 to ",
          kMaxSlots);
  const CellFormat* format = plain_format(shape.dtype);
  if (format == nullptr || !format->in_caches)
    fail(ErrorKind::kType, kStateShape, "dtype: got ", name_of(shape.dtype), ", allowed float32 or float16");
  shape.bytes();
}

std::vector<StateSection> state_sections(const StateShape& shape) {
  std::vector<StateSection> sections;
  std::uint64_t offset = 0;
  const auto add = [&](std::uint64_t bytes) {
    sections.push_back({offset, bytes});
    offset += bytes;
  };
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    if (shape.has_conv()) add(shape.conv_bytes());
    if (shape.has_delta()) add(shape.delta_bytes());
  }
  return sections;
}

}  // namespace kvtrie
