#include "cl/pose.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace kvtrie::cl {
namespace {

constexpr const char* kAllowed =
    "gpu, accelerator, small, no_fp16, late, max_work_group=N, kernel_lanes=N, compute_capability=N, local_bytes=N or "
    "max_alloc_bytes=N";

[[noreturn]] void refuse(std::string_view word) {
  fail(ErrorKind::kArgument, "KVTRIE_POSE", "word: got \"", word, "\", allowed ", kAllowed);
}

// The number behind "name="; nothing for another word.
template <class Number>
bool take_number(std::string_view word, std::string_view name, std::optional<Number>& into) {
  if (!word.starts_with(name) || word.substr(name.size(), 1) != "=") return false;
  const std::string_view digits = word.substr(name.size() + 1);
  Number value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (code != std::errc() || end != digits.data() + digits.size() || value == 0) refuse(word);
  into = value;
  return true;
}

void take_word(std::string_view word, Pose& pose) {
  if (word == "gpu") {
    pose.kind = DeviceKind::kGpu;
  } else if (word == "accelerator") {
    pose.kind = DeviceKind::kAccelerator;
  } else if (word == "small") {
    pose.max_work_group = 32;
    pose.local_bytes = 16U << 10;
    pose.max_alloc_bytes = 128U << 20;
  } else if (word == "no_fp16") {
    pose.no_fp16 = true;
  } else if (word == "late") {
    pose.late = true;
  } else if (!take_number(word, "max_work_group", pose.max_work_group) &&
             !take_number(word, "kernel_lanes", pose.kernel_lanes) &&
             !take_number(word, "compute_capability", pose.compute_capability) &&
             !take_number(word, "local_bytes", pose.local_bytes) &&
             !take_number(word, "max_alloc_bytes", pose.max_alloc_bytes)) {
    refuse(word);
  }
}

}  // namespace

Pose parse_pose(std::string_view words) {
  constexpr std::string_view kBetween = " ,";
  Pose pose;
  while (true) {
    words.remove_prefix(std::min(words.find_first_not_of(kBetween), words.size()));
    if (words.empty()) return pose;
    const std::string_view word = words.substr(0, words.find_first_of(kBetween));
    take_word(word, pose);
    pose.words += pose.words.empty() ? "" : " ";
    pose.words += word;
    words.remove_prefix(word.size());
  }
}

void strike(const Pose& pose, DeviceInfo& info) {
  if (pose.words.empty()) return;
  info.pose = pose.words;
  info.name += " (as " + pose.words + ")";
  if (pose.kind) {
    info.kind = *pose.kind;
    info.unified_memory = false;
    if (info.kind == DeviceKind::kGpu) info.float_vector_width = 1;  // as drivers of GPUs say
  }
  if (pose.max_work_group) info.max_work_group = std::min(*pose.max_work_group, info.max_work_group);
  if (pose.local_bytes) info.local_bytes = std::min(*pose.local_bytes, info.local_bytes);
  if (pose.max_alloc_bytes) info.max_alloc_bytes = std::min(*pose.max_alloc_bytes, info.max_alloc_bytes);
  if (pose.no_fp16) info.fp16 = false;
  if (pose.compute_capability) info.compute_capability = *pose.compute_capability;
}

}  // namespace kvtrie::cl
