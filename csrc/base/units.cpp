#include "base/units.h"

#include <array>
#include <cstdio>
#include <limits>
#include <utility>

#include "base/error.h"

namespace kvtrie {
namespace {

constexpr std::array<std::pair<std::string_view, std::uint64_t>, 10> kUnits = {{
    {"", 1},
    {"b", 1},
    {"kb", 1'000},
    {"mb", 1'000'000},
    {"gb", 1'000'000'000},
    {"tb", 1'000'000'000'000},
    {"kib", std::uint64_t{1} << 10},
    {"mib", std::uint64_t{1} << 20},
    {"gib", std::uint64_t{1} << 30},
    {"tib", std::uint64_t{1} << 40},
}};

constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

bool is_digit(char c) { return c >= '0' && c <= '9'; }

char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Bytes in one `unit`; 0 for an unknown one.
std::uint64_t unit_bytes(std::string_view unit) {
  std::string lower(unit);
  for (char& c : lower) c = to_lower(c);
  for (const auto& [name, bytes] : kUnits) {
    if (lower == name) return bytes;
  }
  return 0;
}

// The digits at the start of `text`, taken off it.
std::string_view take_digits(std::string_view& text) {
  std::size_t count = 0;
  while (count < text.size() && is_digit(text[count])) ++count;
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

// floor(0.digits * unit).
std::uint64_t fraction_of(std::string_view digits, std::uint64_t unit) {
  constexpr std::size_t kDigits = 18;  // beyond these a digit is worth less than a byte in every unit
  unsigned __int128 numerator = 0, denominator = 1;
  for (const char c : digits.substr(0, kDigits)) {
    numerator = numerator * 10 + static_cast<unsigned>(c - '0');
    denominator *= 10;
  }
  return static_cast<std::uint64_t>(numerator * unit / denominator);
}

}  // namespace

std::uint64_t parse_bytes(std::string_view text, std::string_view what) {
  constexpr std::string_view kWhere = "parse_bytes";
  const auto refuse = [&](const char* allowed) {
    fail(ErrorKind::kArgument, kWhere, what, ": got \"", text, "\", allowed ", allowed);
  };
  std::string_view rest = trimmed(text);
  const std::string_view whole = take_digits(rest);
  std::string_view fraction;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    fraction = take_digits(rest);
    if (fraction.empty()) refuse("a number and a unit such as \"512MiB\"");
  }
  const std::uint64_t unit = unit_bytes(trimmed(rest));
  if (whole.empty() || unit == 0) refuse("a number and a unit such as \"512MiB\"");

  unsigned __int128 bytes = 0;
  for (const char c : whole) {
    bytes = bytes * 10 + static_cast<unsigned>(c - '0');
    if (bytes * unit > kMaxBytes) refuse("at most 2^63-1 bytes");
  }
  bytes = bytes * unit + fraction_of(fraction, unit);
  if (bytes > kMaxBytes) refuse("at most 2^63-1 bytes");
  return static_cast<std::uint64_t>(bytes);
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return cat(bytes, " B");
  static constexpr const char* kNames[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kNames)) {
    value /= 1024.0;
    ++unit;
  }
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.*f", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value);
  std::string number = digits;
  if (number.find('.') != std::string::npos) {
    while (number.back() == '0') number.pop_back();
    if (number.back() == '.') number.pop_back();
  }
  return number + " " + kNames[unit];
}

}  // namespace kvtrie
