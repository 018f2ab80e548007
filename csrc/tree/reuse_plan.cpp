#include "tree/reuse_plan.h"

namespace kvtrie {

const char* name_of(Tier tier) noexcept {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kDisk:
      return "disk";
    case Tier::kStore:
      return "store";
    case Tier::kNone:
      break;
  }
  return "none";
}

const char* name_of(ReasonCode code) noexcept {
  switch (code) {
    case ReasonCode::kLastToken:
      return "last_token";
    case ReasonCode::kNoRoom:
      return "no_room";
    case ReasonCode::kChecksum:
      return "checksum";
    case ReasonCode::kNotUsed:
      return "not_used";
    case ReasonCode::kNoState:
      return "no_state";
    case ReasonCode::kWindow:
      return "window_incomplete";
    case ReasonCode::kAtomic:
      return "atomic_span";
    case ReasonCode::kRecompute:
      return "recompute";
    case ReasonCode::kNone:
      break;
  }
  return "none";
}

Reason reason_for(ReasonCode code) {
  switch (code) {
    case ReasonCode::kNoRoom:
      return {code, "the rest is in a lower tier and does not fit on the device"};
    case ReasonCode::kChecksum:
      return {code, "the rest came back damaged and was dropped"};
    case ReasonCode::kNotUsed:
      return {code, "begun with use=False"};
    case ReasonCode::kLastToken:
      return {code, "the last token is computed again, so that there are logits to go on from"};
    case ReasonCode::kNoState:
      return {code, "the recurrent layers have no state where the match ends"};
    case ReasonCode::kWindow:
      return {code, "cells that a sliding window or chunk needs there are gone"};
    case ReasonCode::kAtomic:
      return {code, "the match ends inside a span that goes as one"};
    case ReasonCode::kRecompute:
      return {code, "computing the rest again is measured to be faster than bringing it back"};
    case ReasonCode::kNone:
      break;
  }
  return {};
}

}  // namespace kvtrie
