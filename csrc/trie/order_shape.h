// The relation between the members of a victim order.
//
// Threads: pure.
#pragma once

#include <cstdint>

namespace kvtrie {

//     shape       a member may be the victim                         cut in two               joined with its child
//     leaf first  when no lock and no member or lock is below it     both halves are members  both are, or neither
//     flat        at any time, locked or not, unless it is parked    both halves are members  any may be, or none
enum class OrderShape : std::uint8_t { kLeafFirst, kFlat };

}  // namespace kvtrie
