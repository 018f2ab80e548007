// A second reading of docs/format.md, to frame any fields as a snapshot that is right around them: magic, lengths, JSON
// and checksum. Where the fields end too early, the JSON names what was there.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "fuzz_bytes.h"

namespace kvtrie::fuzz {

class NaiveSnapshot {
 public:
  // `fields`: of the header tensor, from byte 24 on, without the checksum.
  NaiveSnapshot(std::uint32_t point, Input fields) : tensor_bytes_(24 + fields.size() + 8), from_(fields) {
    read();
    write(point, fields);
  }

  const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  std::uint64_t images() const noexcept { return images_; }  // bytes of all of them; wraps

 private:
  void read() {
    const auto start = from_.number<std::int32_t>();
    const auto fingerprint = from_.number<std::uint32_t>(), name_space = from_.number<std::uint32_t>();
    const auto tokens = from_.number<std::uint32_t>(), media = from_.number<std::uint32_t>();
    const auto caches = from_.number<std::uint32_t>(), images = from_.number<std::uint32_t>();
    json_ = R"({"__metadata__":{"format":"kvtrie-snapshot","version":"1","fingerprint":")";
    escape(from_.take(fingerprint));
    from_.take(name_space);
    from_.take(std::size_t{4} * tokens);
    json_ += R"(","tokens":")" + std::to_string(tokens) + R"(","start":")" + std::to_string(start);
    json_ += R"(","images":")" + std::to_string(images) + "\"}";
    name("kvtrie.header", 0, tensor_bytes_);
    for (std::uint32_t i = 0; i < media && !from_.empty(); ++i) {
      from_.take(12);
      from_.take(from_.number<std::uint32_t>());
    }
    for (std::uint32_t i = 0; i < caches && !from_.empty(); ++i) {
      from_.take(8);
      from_.take(std::size_t{8} * from_.number<std::uint32_t>());
    }
    for (std::uint32_t i = 0; i < images && !from_.empty(); ++i) image();
    json_ += '}';
    while ((8 + json_.size() + tensor_bytes_) % 64 != 0) json_ += ' ';
  }

  void image() {
    const auto role = from_.number<std::uint32_t>(), cache = from_.number<std::uint32_t>();
    const auto first = from_.number<std::int32_t>();
    from_.take(4);
    std::uint64_t bytes = 0;
    for (auto sections = from_.number<std::uint32_t>(); sections > 0 && !from_.empty(); --sections) {
      bytes += from_.number<std::uint64_t>();
      from_.take(8);
    }
    const std::string place = std::to_string(cache) + "." + std::to_string(first);
    name(role == 3 ? "state." + std::to_string(cache) : (role == 1 ? "cells." : "window.") + place,
         tensor_bytes_ + images_, bytes);
    images_ += bytes;
  }

  void name(const std::string& tensor, std::uint64_t begin, std::uint64_t bytes) {
    json_ += ",\"" + tensor + R"(":{"dtype":"U8","shape":[)" + std::to_string(bytes) + R"(],"data_offsets":[)" +
             std::to_string(begin) + "," + std::to_string(begin + bytes) + "]}";
  }

  void escape(Input text) {
    for (const std::byte byte : text) {
      const auto code = std::to_integer<unsigned>(byte);
      char escaped[8];
      const bool plain = code >= 32 && code < 127 && code != '"' && code != '\\';
      std::snprintf(escaped, sizeof escaped, plain ? "%c" : "\\u%04x", code);
      json_ += escaped;
    }
  }

  template <class T>
  void put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      bytes_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
  }
  void put(const char* text, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) bytes_.push_back(static_cast<std::byte>(text[i]));
  }

  void write(std::uint32_t point, Input fields) {
    put(static_cast<std::uint64_t>(json_.size()));
    put(json_.data(), json_.size());
    put("KVTRIE\0\1", 8);
    put(std::uint32_t{1});
    put(point);
    put(tensor_bytes_);
    bytes_.insert(bytes_.end(), fields.begin(), fields.end());
    put(checksum(Input(bytes_).subspan(8 + json_.size())));
  }

  std::uint64_t tensor_bytes_, images_ = 0;
  Bytes from_;
  std::string json_;
  std::vector<std::byte> bytes_;
};

}  // namespace kvtrie::fuzz
