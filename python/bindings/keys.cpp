#include "keys.h"

#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "convert.h"

namespace kvtrie::binding {
namespace {

constexpr const char* kAllowedKey = "a bytes object of 32, or a list of them";
constexpr std::size_t kMostRandomBytes = 256;  // that the kernel gives at once

bool random_of_the_kernel(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const std::span<std::byte> next = bytes.first(std::min(bytes.size(), kMostRandomBytes));
    if (::getentropy(next.data(), next.size()) != 0) return false;
    bytes = bytes.subspan(next.size());
  }
  return true;
}

[[noreturn]] void refuse_key(py::handle value, std::string_view where, const std::string& name) {
  fail(ErrorKind::kType, where, name, ": got a ", Py_TYPE(value.ptr())->tp_name, ", allowed ", kAllowedKey);
}

SecretKey to_key(py::handle value, std::string_view where, const std::string& name) {
  const bool bytes = PyBytes_Check(value.ptr()) != 0 || PyByteArray_Check(value.ptr()) != 0;
  if (!bytes) refuse_key(value, where, name);
  const auto given = py::reinterpret_borrow<py::buffer>(value).request();
  const auto count = static_cast<std::size_t>(given.size);
  require(count == SecretKey::kBytes, where, name, ": got ", count, " bytes, allowed ", SecretKey::kBytes);
  return SecretKey(std::span<const std::byte, SecretKey::kBytes>(static_cast<const std::byte*>(given.ptr), count));
}

KeyRing::Keys to_key_list(py::handle value, std::string_view where, const std::string& name) {
  if (!py::isinstance<py::list>(value) && !py::isinstance<py::tuple>(value)) return {to_key(value, where, name)};
  KeyRing::Keys keys;
  for (const py::handle each : value) keys.push_back(to_key(each, where, cat(name, "[", keys.size(), "]")));
  require(!keys.empty(), where, name, ": got an empty list, allowed ", kAllowedKey);
  return keys;
}

}  // namespace

KeyRingPtr to_keys(py::handle value, std::string_view where) {
  if (value.is_none()) return nullptr;
  if (!py::isinstance<py::dict>(value))
    return std::make_shared<KeyRing>(to_key_list(value, where, "keys"), &random_of_the_kernel);
  std::map<std::string, KeyRing::Keys> keys;
  for (const auto& [name_space, given] : py::reinterpret_borrow<py::dict>(value)) {
    const std::string name(to_text(name_space, where, "keys: a namespace"));
    keys.emplace(name, to_key_list(given, where, cat("keys['", name, "']")));
  }
  require(!keys.empty(), where, "keys: got an empty dict, allowed a key for each namespace that may leave the process");
  return std::make_shared<KeyRing>(keys, &random_of_the_kernel);
}

}  // namespace kvtrie::binding
