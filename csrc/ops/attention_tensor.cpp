#include "ops/attention_tensor.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "ops/support.h"

namespace kvtrie::ops {
namespace {

constexpr std::int32_t kMost = 256;          // numbers of a head
constexpr std::int32_t kMostOfOthers = 128;  // so that two lots of float32 cells fit 48 KiB; blocks, the registers
constexpr std::int32_t kMostUnpaired = 128;  // 16 lines of larger heads would not fit the registers
constexpr std::int32_t kUnit = 64;           // numbers of blocks that are whole words

bool halves(const AttentionSizes& sizes) noexcept { return sizes.formats == plain_format(DType::kFloat16); }
bool floats(const AttentionSizes& sizes) noexcept { return sizes.formats == plain_format(DType::kFloat32); }
bool blocks(const AttentionSizes& sizes) noexcept { return sizes.formats == find_cell_format("q8_0"); }

bool paired_only(const AttentionSizes& sizes) noexcept { return !halves(sizes) || sizes.k_dim > kMostUnpaired; }

// A history in two pieces over two splits, and rows at its end.
class SameBits {
 public:
  SameBits(const cl::DevicePtr& device, const AttentionSizes& sizes)
      : device_(device),
        sizes_(sizes),
        pool_(LayerCells::zeros(device, sizes.formats, sizes.kv_heads, kCells, sizes.k_dim, sizes.v_dim)) {
    fill(pool_.k);
    fill(pool_.v);
    q_.resize(std::size_t{kRows} * sizes.heads * sizes.k_dim);
    for (float& value : q_) value = normal_(random_);
    std::vector<float> sinks(static_cast<std::size_t>(sizes.heads));
    for (float& value : sinks) value = normal_(random_);
    options_.sinks = Tensor::from_host(device, DType::kFloat32, {sizes.heads}, sinks.data());
  }

  // Rows [row, row + count) as a step of their own. `walked`: by a tile that walks both splits. What merges itself does
  // so twice, with one and the same counters.
  std::vector<float> rows(AttentionVariant variant, std::int32_t lines, std::uint32_t row, std::uint32_t count,
                          bool walked) const {
    variant.lines = lines;
    const auto last = static_cast<std::int32_t>(kKeys - kRows + row + count);
    const QueryRows query{0, count, last - static_cast<std::int32_t>(count), keys_};
    const AttentionPlan plan =
        plan_attention({&query, 1}, {kSplit, static_cast<std::uint32_t>(kMaxTileRows), walked ? 1 : kRows + 1});
    const std::size_t numbers = std::size_t(sizes_.heads) * sizes_.k_dim;
    const Tensor q =
        Tensor::from_host(device_, DType::kFloat32, {count, sizes_.heads, sizes_.k_dim}, q_.data() + row * numbers);
    const auto words = static_cast<std::uint64_t>(pool_.k.dim(2));
    const AttentionStrides strides{kCells * words, words, kCells * words, words};
    const DevicePlan uploaded = upload_plan(device_, plan);
    Tensor out;
    for (int times = variant.merges ? 2 : 1; times > 0; --times)
      out = AttentionLaunch::run(variant, sizes_, strides, q, pool_.k, pool_.v, Tensor(), uploaded, options_);
    std::vector<float> got(out.size());
    out.copy_to_host(got.data());
    return got;
  }

  // In every form: all rows walked and merged, and one of them alone, are those of the last form.
  bool hold(const AttentionVariant& variant) const {
    const std::vector<TensorForm> forms = tensor_forms(sizes_, variant.terms);
    const std::vector<float> all = rows(variant, forms.back().lines(), 0, kRows, true);
    const std::size_t numbers = std::size_t(sizes_.heads) * sizes_.k_dim;
    const std::span<const float> one = std::span(all).subspan(kOne * numbers, numbers);
    return std::ranges::all_of(forms, [&](const TensorForm& form) {
      return std::ranges::all_of(std::array{false, true}, [&](bool walked) {
        return std::ranges::equal(rows(variant, form.lines(), 0, kRows, walked), all) &&
               std::ranges::equal(rows(variant, form.lines(), kOne, 1, walked), one);
      });
    });
  }

  // In every form: all rows merged by tiles, and one of them alone, are those that a launch merges.
  bool hold_merged(AttentionVariant variant) const {
    const std::size_t numbers = std::size_t(sizes_.heads) * sizes_.k_dim;
    return std::ranges::all_of(tensor_forms(sizes_, variant.terms), [&](const TensorForm& form) {
      variant.merges = false;
      const std::vector<float> all = rows(variant, form.lines(), 0, kRows, false);
      variant.merges = true;
      return std::ranges::equal(rows(variant, form.lines(), 0, kRows, false), all) &&
             std::ranges::equal(rows(variant, form.lines(), kOne, 1, false),
                                std::span(all).subspan(kOne * numbers, numbers));
    });
  }

 private:
  static constexpr std::uint32_t kCells = 256, kKeys = 200, kRows = 9, kOne = 4, kSplit = 128;

  void fill(const Tensor& cells) {
    std::vector<float> numbers(std::size_t{kCells} * sizes_.kv_heads * sizes_.k_dim);
    for (float& value : numbers) value = normal_(random_);
    std::vector<std::byte> bytes(sizes_.formats.k->row_bytes(numbers.size()));
    sizes_.formats.k->store(numbers.data(), numbers.size(), bytes.data());
    cells.copy_from_host(bytes.data());
  }

  cl::DevicePtr device_;
  AttentionSizes sizes_;
  LayerCells pool_;
  AttentionOptions options_;
  CellSpans keys_{{150, 77, 0}, {3, kKeys - 77, 77}};
  std::mt19937 random_{11};
  std::normal_distribution<float> normal_;
  std::vector<float> q_;
};

}  // namespace

bool tensor_sizes(const AttentionSizes& sizes) noexcept {
  const std::int32_t most = halves(sizes) ? kMost : kMostOfOthers, whole = blocks(sizes) ? kUnit : 16;
  return (halves(sizes) || floats(sizes) || blocks(sizes)) && sizes.k_dim == sizes.v_dim && sizes.k_dim % whole == 0 &&
         sizes.k_dim >= 64 && sizes.k_dim <= most;
}

std::int32_t tensor_terms(const AttentionSizes& sizes, Precision precision) noexcept {
  return paired_only(sizes) ? 2 : terms_of(precision);
}

std::vector<TensorForm> tensor_forms(const AttentionSizes& sizes, std::int32_t terms) {
  if (paired_only(sizes)) return {{1, true}, {2, true}, {4, true}};
  if (terms == 1) return {{1, true}, {1, false}, {2, false}, {4, false}};
  return {{1, true}, {2, true}, {4, true}, {4, false}};
}

TensorForm tensor_form(const AttentionSizes& sizes, std::int32_t terms, std::int32_t lines) {
  const std::vector<TensorForm> forms = tensor_forms(sizes, terms);
  const auto fits = std::ranges::find_if(forms, [lines](const TensorForm& form) { return form.lines() >= lines; });
  return fits == forms.end() ? forms.back() : *fits;
}

AttentionVariant tensor_variant(const AttentionSizes& sizes, std::int32_t merge_lanes, std::int32_t terms) {
  AttentionVariant variant;
  variant.tensor = true;
  variant.terms = terms;
  variant.program = "attention_tensor";
  variant.lanes = merge_lanes;
  variant.options = join("-DK_DIM=", sizes.k_dim, " -DTERMS=", terms,
                         halves(sizes) ? std::string() : join(" -DCELL_FORMAT=", int{sizes.formats.k->code}));
  variant.merge_options = join("-DV_DIM=", sizes.v_dim, " -DLANES=", merge_lanes);
  return variant;
}

std::string tensor_options(const AttentionVariant& variant, const TensorForm& form) {
  return join(variant.options, " -DWARPS=", form.warps, " -DPAIRED=", form.paired ? 1 : 0,
              variant.merges ? " -DMERGES=1" : "");
}

bool tensor_agrees(const cl::DevicePtr& device, const AttentionVariant& variant, const AttentionSizes& sizes) {
  const std::vector<TensorForm> forms = tensor_forms(sizes, variant.terms);
  return std::ranges::all_of(forms,
                             [&](const TensorForm& form) {
                               AttentionVariant formed = variant;
                               formed.lines = form.lines();
                               return variant_agrees(device, formed, sizes, false);
                             }) &&
         SameBits(device, sizes).hold(variant);
}

bool merging_agrees(const cl::DevicePtr& device, const AttentionVariant& variant, const AttentionSizes& sizes) {
  return SameBits(device, sizes).hold_merged(variant);
}

}  // namespace kvtrie::ops
