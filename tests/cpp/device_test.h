// A device for tests, and the rule that every counter returns to its start after each of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "cl/clblast.h"
#include "cl/device.h"
#include "cl/fault.h"

namespace kvtrie {

// Where programs are kept between tests, for drivers without a cache of their own; "": nowhere.
inline std::string test_cache_folder() {
  const char* folder = std::getenv("KVTRIE_TEST_PROGRAMS");
  return folder == nullptr ? "" : folder;
}

// What devices emulate in every test; "": themselves.
inline std::string test_emulation() {
  const char* emulation = std::getenv("KVTRIE_EMULATED_DEVICE");
  return emulation == nullptr ? "" : emulation;
}

inline cl::DevicePtr& shared_device_slot() {
  static cl::DevicePtr device;
  return device;
}

// One device for the whole test program: the first that list_devices() names whose platform and name contain
// KVTRIE_DEVICE, accelerators last.
inline const cl::DevicePtr& shared_device() {
  cl::DevicePtr& device = shared_device_slot();
  if (device == nullptr) {
    const char* wanted = std::getenv("KVTRIE_DEVICE");
    auto list = cl::list_devices(test_emulation());
    std::erase_if(list, [&](const cl::DeviceInfo& info) {
      return wanted != nullptr && (info.platform + " " + info.name).find(wanted) == std::string::npos;
    });
    if (list.empty()) fail(ErrorKind::kDevice, "test", "devices: got none, allowed 1 or more (is PoCL installed?)");
    const auto first = std::min_element(list.begin(), list.end(), [](const auto& a, const auto& b) {
      return (a.kind == cl::DeviceKind::kAccelerator) < (b.kind == cl::DeviceKind::kAccelerator);
    });
    device = cl::Device::open(*first, {.cache_folder = test_cache_folder()});
  }
  return device;
}

// Closes it before main ends: oclgrind 21.10 keeps thread-local state that static destructors would use after its end.
class SharedDeviceEnd : public ::testing::Environment {
 public:
  void TearDown() override { shared_device_slot().reset(); }
};
inline ::testing::Environment* const kSharedDeviceEnd = ::testing::AddGlobalTestEnvironment(new SharedDeviceEnd);

// The message of the Error that `call` throws, after checking its kind; "" and a failure when it does not throw.
template <class Call>
std::string error_of(ErrorKind kind, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    settle();
    before_ = device().counters();
  }

  void TearDown() override {
    cl::disarm_fault();
    settle();
    const cl::Counters after = device().counters();
    EXPECT_EQ(after.buffers, before_.buffers);
    EXPECT_EQ(after.buffer_bytes, before_.buffer_bytes);
    EXPECT_EQ(after.wrapped_buffers, before_.wrapped_buffers);
    EXPECT_EQ(after.wrapped_bytes, before_.wrapped_bytes);
    EXPECT_EQ(after.events, before_.events);
    EXPECT_EQ(after.pending_commands, 0U);
  }

  static const cl::DevicePtr& device_ptr() { return shared_device(); }
  static cl::Device& device() { return *shared_device(); }

 private:
  static void settle() {
    device().finish();
    cl::release_blas_workspace(device());
  }

  cl::Counters before_;
};

}  // namespace kvtrie
