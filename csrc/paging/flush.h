// All that is there now, into files: what callers ask for who do not want to wait for writing behind.
//
// Host memory may hold only some of it at a time: rounds (tiers/write_behind.h), as long as each gets something into a
// file, or makes room; no more of them than what was there can take, as others may get theirs into files meanwhile.
//
// Threads: called with the prefix cache's mutex held, which it lets go of. Cost: O(nodes) for each round, in pieces.
#pragma once

#include <cstdint>

#include "paging/gate.h"
#include "store/background_queue.h"
#include "tiers/lower_tiers.h"
#include "tiers/write_behind.h"
#include "tree/demand.h"

namespace kvtrie {

class Flush {
 public:
  // `writer`: that of `behind`. All outlive this.
  Flush(WriteBehind& behind, BackgroundQueue* const& writer, LowerTiers& lower, const Demand& demand)
      : behind_(behind), writer_(writer), lower_(lower), demand_(demand) {}
  Flush(const Flush&) = delete;
  Flush& operator=(const Flush&) = delete;

  bool run(Call& call);  // whether all that was there is in files now. REQUIRES: a disk tier

 private:
  std::uint64_t ask_for_all(Call& call);
  WriteBehind::Round save_round(std::uint64_t flush, Call& call);
  bool let_go_of_saved_memory(Call& call);

  WriteBehind& behind_;
  BackgroundQueue* const& writer_;
  LowerTiers& lower_;
  const Demand& demand_;
};

}  // namespace kvtrie
