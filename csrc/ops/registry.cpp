#include "ops/registry.h"

#include <memory>
#include <unordered_map>

#include "base/mutex.h"

namespace kvtrie::ops::registry {
namespace {

struct Record {
  Mutex mutex;
  std::optional<KernelFamily> family KVTRIE_GUARDED_BY(mutex);
  std::optional<bool> tensor_cores KVTRIE_GUARDED_BY(mutex);
  Widths widths KVTRIE_GUARDED_BY(mutex);
  std::optional<std::int32_t> lanes KVTRIE_GUARDED_BY(mutex), argmax_lanes KVTRIE_GUARDED_BY(mutex);
  std::unordered_map<std::string, bool> verdicts KVTRIE_GUARDED_BY(mutex);
};

std::shared_ptr<Record> record_of(cl::Device& device) {
  return device.extension<Record>([] { return std::make_shared<Record>(); });
}

}  // namespace

std::optional<KernelFamily> family_override(cl::Device& device) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  return record->family;
}

void set_family_override(cl::Device& device, std::optional<KernelFamily> family) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  record->family = family;
}

std::optional<bool> tensor_cores_override(cl::Device& device) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  return record->tensor_cores;
}

void set_tensor_cores_override(cl::Device& device, std::optional<bool> use) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  record->tensor_cores = use;
}

Widths widths(cl::Device& device) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  return record->widths;
}

void set_width_override(cl::Device& device, std::optional<std::int32_t> width) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  record->widths.chosen = width;
}

std::optional<std::int32_t> lanes(cl::Device& device) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  return record->lanes;
}

void set_lanes(cl::Device& device, std::int32_t lanes) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  record->lanes = lanes;
}

std::optional<std::int32_t> argmax_lanes(cl::Device& device) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  return record->argmax_lanes;
}

void set_argmax_lanes(cl::Device& device, std::int32_t lanes) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  record->argmax_lanes = lanes;
}

void set_measured_width(cl::Device& device, std::int32_t width) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  record->widths.measured = width;
}

std::optional<bool> verdict(cl::Device& device, const std::string& key) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  const auto at = record->verdicts.find(key);
  return at == record->verdicts.end() ? std::nullopt : std::optional(at->second);
}

void set_verdict(cl::Device& device, const std::string& key, bool works) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  record->verdicts[key] = works;
}

}  // namespace kvtrie::ops::registry
