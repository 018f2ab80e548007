#include "ops/attention_group.h"

#include <algorithm>
#include <bit>

#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

// Numbers of the output that a lane keeps, for each line twice: of a split, and of all before it.
constexpr std::int32_t kMostOwned = 32;
constexpr std::int32_t kMostLines = 8;
// Words of 4 bytes of a line in local memory beside its query: weights and eighths of a block, and its state (Shared).
constexpr std::int32_t kOfLine = 72 + 8 + 6;
constexpr std::uint64_t kWord = 4;

std::int32_t most_lines(const cl::Device& device, const AttentionSizes& sizes, std::int32_t lanes) {
  if (lanes == 1) return 1;  // nothing is shared
  const std::int32_t owned = divide_up(sizes.v_dim, lanes);
  const std::uint64_t words = device.info().local_bytes / 2 / kWord;
  const auto fit = static_cast<std::int32_t>(words / static_cast<std::uint64_t>(sizes.k_dim + kOfLine));
  const std::int32_t most = std::min({kMostLines, kMostOwned / owned, fit});
  return static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(std::max(most, 1))));
}

}  // namespace

AttentionVariant group_variant(const cl::Device& device, const AttentionSizes& sizes, bool masked, std::int32_t lanes) {
  AttentionVariant variant;
  variant.program = "attention_group";
  variant.lanes = lanes;
  variant.most_lines = most_lines(device, sizes, lanes);
  variant.options = join(common_options(sizes, masked), " -DLANES=", lanes);
  variant.merge_options = join(options_of_merge(sizes), " -DLANES=", lanes);
  return variant;
}

GroupForm group_form(const cl::DevicePtr& device, const AttentionVariant& variant, const AttentionSizes& sizes,
                     bool masked, std::int32_t lines) {
  const std::int32_t most = variant.most_lines;
  const auto form_of = [&](std::int32_t each) { return GroupForm{each, join(variant.options, " -DLINES=", each)}; };
  if (variant.lines > 0) return form_of(variant.lines);
  if (lines > most / 2) return form_of(most);
  GroupForm form = form_of(static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint32_t>(std::max(lines, 1)))));
  const auto made_by = [&](std::int32_t each) {
    AttentionVariant formed = variant;
    formed.lines = each;
    return small_case(device, formed, sizes, masked);
  };
  const bool works = variant_works(device, join(variant.program, " ", form.options),
                                   [&] { return made_by(form.lines) == made_by(most); });
  return works ? form : form_of(most);
}

}  // namespace kvtrie::ops
