#include "ops/self_test.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "cl/kernel_sources.h"
#include "ops/registry.h"

namespace kvtrie::ops {
namespace {

// FNV-1a, 64 bits, of the text of kernels/<program>.cl.
std::uint64_t text_hash(const std::string& program) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const char c : cl::kernel_source(program)) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

// While it lives, the device's journal says that `key` is being tried. A note that cannot be written is lost.
class Trial {
 public:
  Trial(const cl::Device& device, const std::string& key) : journal_(device.options().journal), key_(key) { note('+'); }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  ~Trial() { note('-'); }

 private:
  void note(char sign) const noexcept {
    if (journal_.empty()) return;
    try {
      std::ofstream(journal_, std::ios::app) << sign << key_ << '\n';
    } catch (const std::exception&) {  // no memory for a buffer
    }
  }
  const std::string& journal_;
  const std::string& key_;
};

// Why the test fails; empty when it passes.
std::string failure_of(const cl::Device& device, const std::string& key, const std::function<bool()>& test) {
  const Trial trial(device, key);
  try {
    return test() ? "" : "results differ from the reference";
  } catch (const Error& error) {
    return error.what();
  }
}

// Why the variant does not work; empty when it does.
std::string failure_of_variant(const cl::DevicePtr& device, const std::string& key, const std::function<bool()>& test) {
  if (std::ranges::count(device->options().unusable, key) > 0) return "a driver that ends the process which tries it";
  // A record is worth nothing once the kernel's text has changed; a failure may pass, so only success is recorded.
  const std::string record = cat(key, " ", text_hash(key.substr(0, key.find(' '))));
  if (device->load_record(record) == "ok") return "";
  std::string failure = failure_of(*device, key, test);
  if (failure.empty()) device->store_record(record, "ok");
  return failure;
}

}  // namespace

bool variant_works(const cl::DevicePtr& device, const std::string& key, const std::function<bool()>& test) {
  if (const auto known = registry::verdict(*device, key)) return *known;
  const std::string failure = failure_of_variant(device, key, test);
  if (!failure.empty()) {
    log_message(LogLevel::kWarning,
                cat("[ops.self_test] kernel ", key, " is not used on ", device->info().name, ": ", failure));
  }
  registry::set_verdict(*device, key, failure.empty());
  return failure.empty();
}

bool all_close(std::span<const float> got, std::span<const float> wanted, float tolerance) {
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!(std::fabs(got[i] - wanted[i]) <= tolerance * std::max(1.0f, std::fabs(wanted[i])))) return false;
  return true;
}

void require_variant(const cl::DevicePtr& device, const std::string& key, const std::function<bool()>& test) {
  if (registry::verdict(*device, key).value_or(false)) return;
  const std::string failure = failure_of_variant(device, key, test);
  if (!failure.empty()) {
    fail(ErrorKind::kDevice, "ops.self_test", "kernel ", key, " on ", device->info().name, ": got ", failure,
         ", allowed the reference's results");
  }
  registry::set_verdict(*device, key, true);
}

}  // namespace kvtrie::ops
