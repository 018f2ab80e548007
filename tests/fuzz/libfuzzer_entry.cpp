// The program that libFuzzer drives: one target. A finding ends it, so that libFuzzer keeps the input.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    kvtrie::fuzz::play(kvtrie::fuzz::targets().front(), std::as_bytes(std::span(data, size)));
  } catch (const std::exception& finding) {
    std::fprintf(stderr, "FINDING: %s\n", finding.what());
    std::abort();
  }
  return 0;
}
