#include "paging/flush.h"

namespace kvtrie {

// Copies on their way come first: they may fail yet, and are to be queued again then.
bool Flush::run(Call& call) {
  const auto drain = [&] { call.outside([&] { writer_->drain(); }); };
  const std::uint64_t flush = ask_for_all(call);
  drain();
  std::uint64_t rounds = 1;
  for (std::uint64_t number = 0; number < rounds; ++number) {
    const std::uint64_t written = lower_.disk()->stats().writes;
    const WriteBehind::Round round = save_round(flush, call);
    if (number == 0) rounds = 2 * (round.queued + round.left) + 1;
    drain();
    if (round.left == 0) return round.is_written();
    const bool some = round.queued > 0 && lower_.disk()->stats().writes > written;
    if (!some && !let_go_of_saved_memory(call)) return false;
  }
  return false;
}

std::uint64_t Flush::ask_for_all(Call& call) {
  const std::uint64_t flush = behind_.begin_flush();
  Pieces(call).walk([&](NodeWalk& walk, std::size_t count) { behind_.ask_some(walk, count, flush); });
  return flush;
}

WriteBehind::Round Flush::save_round(std::uint64_t flush, Call& call) {
  Pieces pieces(call);
  WriteBehind::Round round = behind_.begin_round(flush);
  for (NodeWalk walk; !walk.over;) pieces.add(behind_.save_next(walk, round));
  return round;
}

// State that nobody wanted was not written behind, and may be in the way of the state that is to be written now.
bool Flush::let_go_of_saved_memory(Call& call) {
  if (!lower_.disk()->writing() || !demand_.holds_back()) return false;
  bool any = false;
  Pieces(call).walk(
      [&](NodeWalk& walk, std::size_t count) { any = lower_.let_go_of_saved_memory(walk, count) || any; });
  return any;
}

}  // namespace kvtrie
