#include "ops/registry.h"

#include <memory>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"

namespace kvtrie::ops::registry {
namespace {

struct Record {
  Mutex mutex;
  std::optional<KernelFamily> family KVTRIE_GUARDED_BY(mutex);
  std::optional<bool> tensor_cores KVTRIE_GUARDED_BY(mutex);
  std::optional<std::int64_t> norm_numbers KVTRIE_GUARDED_BY(mutex);
  std::optional<std::int32_t> merged_splits KVTRIE_GUARDED_BY(mutex);
  std::optional<bool> puts KVTRIE_GUARDED_BY(mutex);
  std::optional<bool> one_launch KVTRIE_GUARDED_BY(mutex);
  Units units KVTRIE_GUARDED_BY(mutex);
  Widths widths KVTRIE_GUARDED_BY(mutex);
  std::optional<std::int32_t> lanes KVTRIE_GUARDED_BY(mutex), argmax_lanes KVTRIE_GUARDED_BY(mutex);
  std::unordered_map<std::string, bool> verdicts KVTRIE_GUARDED_BY(mutex);
};

std::shared_ptr<Record> record_of(cl::Device& device) {
  return device.extension<Record>([] { return std::make_shared<Record>(); });
}

template <class T>
T kept(cl::Device& device, T Record::*what) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  return (*record).*what;
}

template <class T>
void keep(cl::Device& device, T Record::*what, T value) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  (*record).*what = std::move(value);
}

}  // namespace

std::optional<KernelFamily> family_override(cl::Device& device) { return kept(device, &Record::family); }

void set_family_override(cl::Device& device, std::optional<KernelFamily> family) {
  keep(device, &Record::family, family);
}

std::optional<bool> tensor_cores_override(cl::Device& device) { return kept(device, &Record::tensor_cores); }

void set_tensor_cores_override(cl::Device& device, std::optional<bool> use) {
  keep(device, &Record::tensor_cores, use);
}

std::optional<std::int64_t> norm_numbers_override(cl::Device& device) { return kept(device, &Record::norm_numbers); }

void set_norm_numbers_override(cl::Device& device, std::optional<std::int64_t> numbers) {
  keep(device, &Record::norm_numbers, numbers);
}

std::optional<std::int32_t> merged_splits_override(cl::Device& device) { return kept(device, &Record::merged_splits); }

void set_merged_splits_override(cl::Device& device, std::optional<std::int32_t> splits) {
  keep(device, &Record::merged_splits, splits);
}

std::optional<bool> puts_override(cl::Device& device) { return kept(device, &Record::puts); }

void set_puts_override(cl::Device& device, std::optional<bool> puts) { keep(device, &Record::puts, puts); }

std::optional<bool> one_launch_override(cl::Device& device) { return kept(device, &Record::one_launch); }

void set_one_launch_override(cl::Device& device, std::optional<bool> one) { keep(device, &Record::one_launch, one); }

Units integer_units(cl::Device& device) { return kept(device, &Record::units); }

void set_integer_units_override(cl::Device& device, std::optional<IntegerUnits> units) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  record->units.chosen = units;
}

void set_measured_integer_units(cl::Device& device, IntegerUnits units) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  record->units.measured = units;
}

Widths widths(cl::Device& device) { return kept(device, &Record::widths); }

void set_width_override(cl::Device& device, std::optional<std::int32_t> width) {
  const auto record = record_of(device);
  const MutexLock lock(record->mutex);
  record->widths.chosen = width;
}

std::optional<std::int32_t> lanes(cl::Device& device) { return kept(device, &Record::lanes); }

void set_lanes(cl::Device& device, std::int32_t lanes) { keep(device, &Record::lanes, std::optional(lanes)); }

std::optional<std::int32_t> argmax_lanes(cl::Device& device) { return kept(device, &Record::argmax_lanes); }

void set_argmax_lanes(cl::Device& device, std::int32_t lanes) {
  keep(device, &Record::argmax_lanes, std::optional(lanes));
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
