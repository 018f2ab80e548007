// Sizes in bytes as people write them.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvtrie {

// Bytes from "512MiB", "2GiB", "1.5GB", "4096" or "100 KiB": a number, optional spaces, an optional unit.
// Units: B; KB, MB, GB, TB (powers of 1000); KiB, MiB, GiB, TiB (powers of 1024); letter case is ignored.
// A fraction is rounded down to a byte. Throws kArgument, naming `what`, for anything else and beyond 2^63-1.
std::uint64_t parse_bytes(std::string_view text, std::string_view what = "size");

// For people: "0 B", "1023 B", "1.5 KiB", "512 MiB"; three significant digits at most above 1 KiB.
std::string format_bytes(std::uint64_t bytes);

}  // namespace kvtrie
