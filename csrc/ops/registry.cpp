#include "ops/registry.h"

#include <memory>
#include <mutex>
#include <unordered_map>

namespace kvtrie::ops::registry {
namespace {

struct Record {
  std::mutex mutex;  // guards all members
  std::optional<KernelFamily> family;
  Widths widths;
  std::optional<std::int32_t> lanes;
  std::unordered_map<std::string, bool> verdicts;
};

std::shared_ptr<Record> record_of(cl::Device& device) {
  return device.extension<Record>([] { return std::make_shared<Record>(); });
}

}  // namespace

std::optional<KernelFamily> family_override(cl::Device& device) {
  const auto record = record_of(device);
  const std::lock_guard lock(record->mutex);
  return record->family;
}

void set_family_override(cl::Device& device, std::optional<KernelFamily> family) {
  const auto record = record_of(device);
  const std::lock_guard lock(record->mutex);
  record->family = family;
}

Widths widths(cl::Device& device) {
  const auto record = record_of(device);
  const std::lock_guard lock(record->mutex);
  return record->widths;
}

void set_width_override(cl::Device& device, std::optional<std::int32_t> width) {
  const auto record = record_of(device);
  const std::lock_guard lock(record->mutex);
  record->widths.chosen = width;
}

std::optional<std::int32_t> lanes(cl::Device& device) {
  const auto record = record_of(device);
  const std::lock_guard lock(record->mutex);
  return record->lanes;
}

void set_lanes(cl::Device& device, std::int32_t lanes) {
  const auto record = record_of(device);
  const std::lock_guard lock(record->mutex);
  record->lanes = lanes;
}

void set_measured_width(cl::Device& device, std::int32_t width) {
  const auto record = record_of(device);
  const std::lock_guard lock(record->mutex);
  record->widths.measured = width;
}

std::optional<bool> verdict(cl::Device& device, const std::string& key) {
  const auto record = record_of(device);
  const std::lock_guard lock(record->mutex);
  const auto at = record->verdicts.find(key);
  return at == record->verdicts.end() ? std::nullopt : std::optional(at->second);
}

void set_verdict(cl::Device& device, const std::string& key, bool works) {
  const auto record = record_of(device);
  const std::lock_guard lock(record->mutex);
  record->verdicts[key] = works;
}

}  // namespace kvtrie::ops::registry
