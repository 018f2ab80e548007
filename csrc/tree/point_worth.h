// What restore points are worth, learned from the sessions that go back to them.
//
// Concept. Nobody knows which prompt comes next, but points of one sort fare alike: in some loads every conversation
// goes on where it ended, in others none does and texts in the middle are edited. A *sort* is all that is known about a
// point when it is made, and whether a session has gone back to it since:
//
//     an end, or a branch           still one, or superseded (restore_points.h)
//     spaced, or a message's end    gap    how often 2 divides its number among those of its prompt, up to 3
//                                   tail   how often the prompt behind it can be halved down to one gap, up to 6
//
// Age is the number of sessions that began since the point was made, or since a session went back to it. In each
// doubling of its age, a share of the points of a sort is gone back to:
//
//     age                      0        1 2      3 .. 6      7 .. 14      sessions
//     doubling                 0        1        2           3
//     saved by sessions        s0       s1       s2          s3           gaps that had not to be computed
//     points that were there   n0       n1       n2          n3           one that was there for a part counts in part
//
//     share(d) = (s_d + kTrust share(d - 1)) / (n_d + kTrust)             share(-1): the prior
//     worth    = the largest of share(d) / (age + 1), d the doubling of the age, and, for each later doubling,
//                what is saved up to its end / the sessions until then
//
// So worth is in gaps saved by a slot and session, at the best time to let go of it (as Gittins' index is), and what
// was never seen is taken to go on as before: half as often at twice the age. What a session saved is the distance from
// the point to the next one above it, which counts what others would have done instead. The prior of an end is one gap;
// of a spaced point a quarter of the gap that it would leave among those of its prompt, divided by its tail: with
// nothing learned, the distance between the points of a conversation grows with the distance from its end.
//
// Evicting by learned hits per space and time is the idea of LHD (Beckmann, Chen, Cidon, NSDI 2018).
//
// Threads: guarded by the prefix cache's mutex. Units: a gap is `checkpoint_every` tokens.
#pragma once

#include <array>
#include <cstdint>

namespace kvtrie {

// As numbers from 0 to kCount - 1.
class PointSort {
 public:
  static constexpr int kEnds = 4, kGaps = 4, kTails = 7;
  static constexpr int kCount = kEnds + 2 * kGaps * kTails;

  static PointSort end(bool superseded, bool returned) noexcept;
  // `gap`: 1, 2, 4 ... ; `tail`: gaps of its prompt behind it, at least 0.
  static PointSort spaced(double gap, double tail, bool returned) noexcept;

  int number() const noexcept { return number_; }
  double prior() const noexcept { return prior_; }
  // Gaps beyond the last sort's own are worth as many times as much.
  double scale() const noexcept { return scale_; }

 private:
  PointSort(int number, double prior, double scale) noexcept : number_(number), prior_(prior), scale_(scale) {}
  int number_;
  double prior_, scale_;
};

class PointWorth {
 public:
  static constexpr double kTrust = 16;  // points that what was seen before counts for
  static constexpr int kAges = 24;      // doublings

  void session_begins() noexcept { ++now_; }
  std::int64_t now() const noexcept { return now_; }

  // Of a point of this sort since then.
  double worth(PointSort sort, std::int64_t since) const noexcept;
  // It was there since then, and is another's, or of another sort, from now on.
  void count(PointSort sort, std::int64_t since) noexcept;
  // A session goes back to it, and computes so many gaps less than it would without.
  void count_return(PointSort sort, std::int64_t since, double gaps) noexcept;

 private:
  using Doublings = std::array<double, kAges>;
  struct Seen {
    Doublings saved{}, there{};
    int doublings = 0;  // the last one that a point was there in
    bool changed = true;
    Doublings shares{};  // where nothing changed since
  };

  static int doubling_of(std::int64_t age) noexcept;
  const Doublings& shares(PointSort sort) const noexcept;

  std::int64_t now_ = 0;  // sessions
  mutable std::array<Seen, PointSort::kCount> seen_{};
};

}  // namespace kvtrie
