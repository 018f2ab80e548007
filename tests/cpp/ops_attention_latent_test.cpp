// Attention where the ends of keys are values (LayerCells::latent_dim), against the reference with values apart.
#include "attention_scene.h"

namespace kvtrie::ops {
namespace {

class AttentionLatent : public OpsTest {};

// One row is read for key and value: 64 rotated numbers and a latent of 512 as DeepSeek's models have them, 16 query
// heads on the one K/V head; and sizes that nothing divides.
TEST_F(AttentionLatent, AgreesForLatentKeys) {
  check_sizes({16, 1, 576, 512, true}, DType::kFloat16, 20);
  check_sizes({20, 1, 80, 64, true}, DType::kFloat32, 21);
  check_sizes({3, 1, 21, 16, true}, DType::kFloat16, 22);
  const ForcedFamily forced(KernelFamily::kWorkGroup);
  check_sizes({5, 1, 80, 64, true}, DType::kFloat16, 23);
  check_sizes({4, 2, 64, 64, true}, DType::kFloat32, 24);
}

TEST_F(AttentionLatent, LatentKeysGiveTheBitsOfValuesApart) {
  for (const KernelFamily family : {KernelFamily::kSerial, KernelFamily::kWorkGroup}) {
    const ForcedFamily forced(family);
    Scene scene({16, 1, 96, 64, true}, 2000, DType::kFloat16, 25);
    const std::size_t history = scene.add_history(1100, 100);
    scene.add_rows(history, 40);
    scene.fill();
    const auto together = scene.run(0.0f, true);
    EXPECT_TRUE(same_bits(scene.with_values_apart().run(0.0f, true), together));
    const PlanLimits single{512, 1, 8};
    EXPECT_TRUE(same_bits(scene.run(0.0f, true, 0.0f, &single), together)) << "one row to a tile";
    EXPECT_TRUE(same_bits(scene.rearranged(3, 26).run(0.0f, true), together)) << "other cells";
  }
}

TEST_F(AttentionLatent, RefusesLatentsThatAreNoEndOfAKey) {
  Scene scene({2, 1, 16, 8, true}, 64, DType::kFloat32, 27);
  scene.add_rows(scene.add_history(9, 9), 1);
  scene.fill();
  LayerCells cells = LayerCells::zeros(shared_device(), plain_format(DType::kFloat32), 1, 64, 16, 0);
  const DevicePlan plan = upload_plan(shared_device(), plan_attention(scene.queries(), plan_limits(*shared_device())));
  const Tensor q = upload(std::vector<float>(2 * 16), {1, 2, 16});
  const auto attend = [&] { attend_spans(q, cells, plan, {}); };
  for (const std::int64_t wrong : {17, -1}) {
    cells.latent_dim = wrong;
    EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, attend), "latent_dim: got " + std::to_string(wrong)));
  }
  cells = LayerCells::zeros(shared_device(), plain_format(DType::kFloat32), 1, 64, 16, 8);
  cells.latent_dim = 8;
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, attend), "without a V of its own"));
}

}  // namespace
}  // namespace kvtrie::ops
