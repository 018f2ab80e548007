// Self-tests of kernels on the driver that does nothing: its kernels do not run, so those that are tried are noted in
// the device's journal (cl::Device::Options::journal), taken for passed, and the work is done again.
//
// Threads: one.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "base/error.h"
#include "cl/device.h"
#include "ops/registry.h"

namespace kvtrie::bench {

// Whether self-tests were tried since the journal was begun; they have passed from now on.
inline bool take_for_passed(cl::Device& device, const std::filesystem::path& journal) {
  std::ifstream tried(journal);
  bool any = false;
  for (std::string line; std::getline(tried, line);) {
    if (!line.starts_with('+')) continue;
    ops::registry::set_verdict(device, line.substr(1), true);
    any = true;
  }
  return any;
}

// Runs `work` until it meets no self-test that was not taken for passed before. `journal`: that of the device.
template <class Work>
void without_self_tests(cl::Device& device, const std::filesystem::path& journal, Work&& work) {
  for (int tries = 0; tries < 100; ++tries) {
    std::filesystem::remove(journal);
    std::string why;
    try {
      work();
    } catch (const Error& error) {
      why = error.what();
    }
    if (take_for_passed(device, journal)) continue;
    require(why.empty(), "without_self_tests", why);
    return;
  }
  fail(ErrorKind::kInternal, "without_self_tests", "self-tests: got more each time, allowed an end");
}

}  // namespace kvtrie::bench
