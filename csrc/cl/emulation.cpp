#include "cl/emulation.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace kvtrie::cl {
namespace {

constexpr const char* kAllowed =
    "gpu, accelerator, small, no_fp16, late, wmma, mfma, dpas, max_work_group=N, kernel_lanes=N, compute_capability=N, "
    "local_bytes=N or max_alloc_bytes=N";

[[noreturn]] void refuse(std::string_view word) {
  fail(ErrorKind::kArgument, "KVTRIE_EMULATED_DEVICE", "word: got \"", word, "\", allowed ", kAllowed);
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

void take_word(std::string_view word, Emulation& emulation) {
  if (word == "gpu") {
    emulation.kind = DeviceKind::kGpu;
  } else if (word == "accelerator") {
    emulation.kind = DeviceKind::kAccelerator;
  } else if (word == "small") {
    emulation.max_work_group = 32;
    emulation.local_bytes = 16U << 10;
    emulation.max_alloc_bytes = 128U << 20;
  } else if (word == "no_fp16") {
    emulation.no_fp16 = true;
  } else if (word == "late") {
    emulation.late = true;
  } else if (word == "wmma") {
    emulation.matrix_unit = MatrixUnit::kWmma;
  } else if (word == "mfma") {
    emulation.matrix_unit = MatrixUnit::kMfma;
  } else if (word == "dpas") {
    emulation.matrix_unit = MatrixUnit::kDpas;
  } else if (!take_number(word, "max_work_group", emulation.max_work_group) &&
             !take_number(word, "kernel_lanes", emulation.kernel_lanes) &&
             !take_number(word, "compute_capability", emulation.compute_capability) &&
             !take_number(word, "local_bytes", emulation.local_bytes) &&
             !take_number(word, "max_alloc_bytes", emulation.max_alloc_bytes)) {
    refuse(word);
  }
}

}  // namespace

Emulation parse_emulation(std::string_view words) {
  constexpr std::string_view kBetween = " ,";
  Emulation emulation;
  while (true) {
    words.remove_prefix(std::min(words.find_first_not_of(kBetween), words.size()));
    if (words.empty()) return emulation;
    const std::string_view word = words.substr(0, words.find_first_of(kBetween));
    take_word(word, emulation);
    emulation.words += emulation.words.empty() ? "" : " ";
    emulation.words += word;
    words.remove_prefix(word.size());
  }
}

void emulate(const Emulation& emulation, DeviceInfo& info) {
  if (emulation.words.empty()) return;
  info.emulates = emulation.words;
  info.name += " (as " + emulation.words + ")";
  if (emulation.kind) {
    info.kind = *emulation.kind;
    info.unified_memory = false;
    if (info.kind == DeviceKind::kGpu) info.float_vector_width = 1;  // as drivers of GPUs say
  }
  if (emulation.max_work_group) info.max_work_group = std::min(*emulation.max_work_group, info.max_work_group);
  if (emulation.local_bytes) info.local_bytes = std::min(*emulation.local_bytes, info.local_bytes);
  if (emulation.max_alloc_bytes) info.max_alloc_bytes = std::min(*emulation.max_alloc_bytes, info.max_alloc_bytes);
  if (emulation.no_fp16) info.fp16 = false;
  if (emulation.matrix_unit) {
    info.matrix_unit = *emulation.matrix_unit;
    info.matrix_unit_emulated = true;
  }
  if (emulation.compute_capability) info.compute_capability = *emulation.compute_capability;
}

}  // namespace kvtrie::cl
