// The part of a prompt that can be reused, where it is, its cost, and the reason for not more.
#pragma once

#include <cstdint>
#include <string>

namespace kvtrie {

// Where state is, from near to far.
enum class Tier : std::uint8_t { kNone, kDevice, kHost, kDisk, kStore };
const char* name_of(Tier tier) noexcept;  // "none", "device", "host", "disk", "store"

// The treatment of state in a lower tier.
enum class LoadPolicy : std::uint8_t {
  kAuto,    // it is loaded, or computed again where that is measured to be faster
  kAlways,  // loaded
};

// Why less was reused than the tree knows.
enum class ReasonCode : std::uint8_t {
  kNone,       // nothing was left out: reused == matched
  kLastToken,  // one token is always left to compute, so that there are logits to go on from
  kNoRoom,     // the rest is in a lower tier and does not fit on the device now
  kChecksum,   // the rest came back from a lower tier with wrong bytes and was dropped
  kNotUsed,    // the session was begun with use=False
  kNoState,    // recurrent layers have no state where the match ends
  kWindow,     // cells that a sliding window or chunk needs there are gone
  kAtomic,     // the match ends inside an image, audio clip or other span that goes as one
  kRecompute,  // the rest is in a lower tier, and computing it again is measured to be faster
};
// "none", "last_token", "no_room", "checksum", "not_used", "no_state", "window_incomplete", "atomic_span",
// "recompute"
const char* name_of(ReasonCode code) noexcept;

struct Reason {
  ReasonCode code = ReasonCode::kNone;
  std::string text;  // one sentence for people; empty for kNone
};

Reason reason_for(ReasonCode code);  // the code with its sentence

struct ReusePlan {
  std::int32_t matched = 0;       // tokens of the prompt that the tree knows
  std::int32_t reusable = 0;      // tokens that need not be computed
  Tier tier = Tier::kNone;        // the lowest tier the plan reads from; kNone when nothing is reusable
  std::uint64_t bytes_moved = 0;  // bytes that come back from lower tiers
  Reason reason;
};

}  // namespace kvtrie
