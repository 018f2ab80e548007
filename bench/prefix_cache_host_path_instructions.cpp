// What a decode step asks of the host, on the driver that does nothing (null_model.h). For counting instructions
// (instructions_main.h), SIZE being of no account:
//
//     step        a decode step of SmolLM2's shape, with the choice of its token
//
// Without arguments it prints a table: calls of OpenCL by name, bytes and microseconds of such a step.
#include <unistd.h>

#include <chrono>

#include "instructions_main.h"
#include "null_model.h"

namespace kvtrie {
namespace {

using bench::kTimes;
using bench::NullModel;

constexpr std::size_t kSteps = 100;  // that are timed

std::filesystem::path journal() { return std::filesystem::temp_directory_path() / cat("kvtrie-null-", getpid()); }

struct Work {
  Work() : model(journal()) {
    model.begin();
    for (int warm = 0; warm < 3; ++warm) model.decode();
  }

  NullModel model;
  std::size_t done = 0;
};

void decode_all(Work& work) {
  for (std::size_t step = 0; step < kTimes; ++step) {
    const std::uint64_t before = work.model.device()->counters().launches;
    work.model.decode();
    work.done += work.model.device()->counters().launches - before == NullModel::kLaunches ? 1 : 0;
  }
}

std::size_t count_steps(std::size_t) { return bench::counted<decode_all>(Work()); }

void print_table() {
  using Clock = std::chrono::steady_clock;
  Work work;
  null_driver::reset();
  const auto begun = Clock::now();
  for (std::size_t step = 0; step < kSteps; ++step) work.model.decode();
  const std::chrono::duration<double, std::micro> taken = Clock::now() - begun;
  double all = 0;
  for (const auto& [name, times] : null_driver::calls()) {
    std::printf("  %-28s %8.2f a step\n", name.c_str(), static_cast<double>(times) / kSteps);
    all += static_cast<double>(times) / kSteps;
  }
  const null_driver::Bytes bytes = null_driver::bytes();
  std::printf("  %-28s %8.2f a step, %.2f a launch\n", "calls", all, all / NullModel::kLaunches);
  std::printf("  bytes up, down               %8.0f %.0f a step\n", static_cast<double>(bytes.up) / kSteps,
              static_cast<double>(bytes.down) / kSteps);
  const double step = taken.count() / kSteps;
  std::printf("  microseconds                 %8.1f a step, %.2f a launch\n", step, step / NullModel::kLaunches);
}

}  // namespace
}  // namespace kvtrie

int main(int argc, char** argv) {
  kvtrie::null_driver::use();
  if (argc == 1) {
    kvtrie::print_table();
    return 0;
  }
  constexpr kvtrie::bench::Operation kOperations[] = {{"step", kvtrie::count_steps}};
  return kvtrie::bench::run_operations(argc, argv, kOperations);
}
