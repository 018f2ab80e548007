// Random operations on RecurrentCache over the host store against naive histories. Freed slots hold NaN. After each
// operation: check(), every length, the number of free slots, and now and then every state, bit for bit.
//
//   recurrent_oracle [--seed N] [--operations N]
//
// The seed is printed and replays the run. Exits with 1 at the first difference.
#include <array>
#include <iostream>

#include "operations.h"
#include "recurrent_steps.h"

namespace kvtrie::oracle {
namespace {

class Driver : public RecurrentSteps {
 public:
  using RecurrentSteps::RecurrentSteps;

  struct Operation {
    std::uint32_t weight;
    void (Driver::*run)();
  };

  void step() {
    static constexpr std::array<Operation, 17> kOperations{{{160, &Driver::start},
                                                            {90, &Driver::begin},
                                                            {420, &Driver::write},
                                                            {20, &Driver::drop},
                                                            {20, &Driver::open},
                                                            {10, &Driver::close},
                                                            {40, &Driver::copy_prefix},
                                                            {40, &Driver::remove},
                                                            {40, &Driver::take_snapshot},
                                                            {50, &Driver::restore},
                                                            {15, &Driver::split},
                                                            {20, &Driver::merge},
                                                            {25, &Driver::forget},
                                                            {30, &Driver::schedule},
                                                            {30, &Driver::drain},
                                                            {60, &Driver::page},
                                                            {40, &Driver::refuse}}};
    std::uint32_t total = 0;
    for (const Operation& operation : kOperations) total += operation.weight;
    std::uint32_t choice = below(total);
    const Operation* chosen = kOperations.data();
    for (; choice >= chosen->weight; ++chosen) choice -= chosen->weight;
    (this->*chosen->run)();
    compare();
  }

 private:
  void open() {
    if (twins_.size() > 10) return;
    const SequenceId id = cache_->open_sequence();
    expect(id >= kFirstOpenedSequence && find(id) == nullptr, "the number of a new sequence");
    twins_[id];
  }

  void close() {
    const SequenceId id = known_number();
    if (id < 0) return;
    cache_->close_sequence(id);
    if (Step* step = step_of(id)) {  // a closed sequence takes its forward with it; the others stay
      const std::vector<StepSequence> sequences = step->sequences;
      std::erase_if(steps_, [step](const auto& each) { return each.get() == step; });
    }
    twins_.erase(id);
  }

  // What a change does to the forward the sequence is in; false: the call is refused instead.
  template <class Call>
  bool change(SequenceId id, Call call) {
    if (busy(id)) {
      expect_refused(ErrorKind::kBusy, call);
      return false;
    }
    call();
    if (Step* step = step_of(id)) {  // dropped without its other sequences being forgotten
      std::erase_if(steps_, [step](const auto& each) { return each.get() == step; });
    }
    return true;
  }

  void copy_prefix() {
    const SequenceId from = known_number(), to = below(3) == 0 && from >= 0 ? known_number() : user_number();
    if (from < 0) return;
    const std::int32_t length = length_of(from);
    const std::int32_t wanted = below(3) == 0 ? between(0, length) : below(4) == 0 ? 0 : length;
    const auto call = [&] { cache_->copy_prefix(from, to, wanted); };
    if (wanted != 0 && wanted != length) return expect_refused(ErrorKind::kNotRestorable, call);
    const HeldPtr state = wanted == 0 ? nullptr : find(from)->state;
    if (!change(to, call)) return;
    twins_[to].state = state;
    if (from != to) twins_[to].schedule.clear();
    forget_if_empty(to);
  }

  void remove() {
    const SequenceId id = below(2) == 0 ? user_number() : known_number();
    const std::int32_t length = length_of(id), begin = below(2) == 0 ? 0 : between(0, length);
    const bool to_end = below(4) != 0;
    const std::int32_t end = to_end ? length : between(begin, length);
    const auto call = [&] { cache_->remove(id, begin, to_end ? std::nullopt : std::optional(end)); };
    for (std::int32_t at = -1; at <= length + 1; ++at) {
      expect(cache_->can_resume(id, at) == (at == 0 || at == length), "can_resume");
    }
    if (begin == end) return call();
    if (end < length) return expect_refused(ErrorKind::kNotSupported, call);
    if (begin > 0) return expect_refused(ErrorKind::kNotRestorable, call);
    if (!change(id, call)) return;
    find(id)->state = nullptr;
    forget_if_empty(id);
  }

  // ---- snapshots --------------------------------------------------------------------------------------------------

  void keep(const RecurrentCache::SnapshotPtr& snapshot, const HeldPtr& state, std::int32_t start, std::int32_t end) {
    expect((snapshot == nullptr) == (state == nullptr), "whether there is a snapshot");
    if (!snapshot) return;
    expect(snapshot->start() == start && snapshot->end() == end, "the range of a snapshot");
    if (snapshots_.size() < 12) snapshots_.push_back({snapshot, state, start, end});
  }

  void take_snapshot() {
    const SequenceId id = below(2) == 0 ? user_number() : known_number();
    const std::int32_t length = length_of(id), start = between(0, length);
    const auto snapshot = cache_->snapshot(id, start);
    const HeldPtr state = start < length ? find(id)->state : nullptr;
    keep(snapshot, state, start, length);
    if (!snapshot) return;
    expect(snapshot->nbytes() + snapshot->shared_nbytes() == shape_.bytes_per_slot(), "bytes of a snapshot");
    expect(snapshot->nbytes() == 0, "a snapshot of a live state is shared");
  }

  void restore() {
    KeptSnapshot* kept = below(5) == 0 ? nullptr : any(snapshots_);
    const SequenceId id = below(2) == 0 || known_number() < 0 ? user_number() : known_number();
    const std::int32_t end = kept == nullptr ? length_of(id) : kept->end;
    const std::int32_t target = below(4) == 0 ? between(-1, end + 1) : end;
    const RecurrentCache::SnapshotPtr snapshot = kept == nullptr ? nullptr : kept->snapshot;
    bool restored = false;
    const auto call = [&] { restored = cache_->restore(id, snapshot, target); };
    if (target != end || kept == nullptr) {
      const std::string before = cache_->dump();
      call();
      expect(cache_->dump() == before, "a restore that should change nothing");
      return expect(restored == (target == end), "a restore to another offset");
    }
    const HeldPtr state = kept->state;
    if (!change(id, call)) return;
    expect(restored, "a restore");
    twins_[id].state = state;
  }

  void split() {
    KeptSnapshot* kept = any(snapshots_);
    if (kept == nullptr) return;
    const KeptSnapshot whole = *kept;
    snapshots_.erase(snapshots_.begin() + (kept - snapshots_.data()));
    const std::int32_t at = between(whole.start - 1, whole.end + 1);
    auto [lower, upper] = cache_->split(whole.snapshot, at);
    expect(whole.snapshot->consumed(), "a split consumes");
    expect((at >= whole.end ? upper : lower) == nullptr, "the empty half");
    if (at >= whole.end) return keep(lower, whole.state, whole.start, whole.end);
    keep(upper, whole.state, std::max(at, whole.start), whole.end);
  }

  void merge() {
    if (snapshots_.size() < 2) return;
    const std::size_t a = below(static_cast<std::uint32_t>(snapshots_.size()));
    const std::size_t b = below(static_cast<std::uint32_t>(snapshots_.size()));
    const KeptSnapshot first = snapshots_[a], second = snapshots_[b];
    const auto call = [&] { return cache_->merge(first.snapshot, second.snapshot); };
    if (a == b || first.end != second.start) return expect_refused(ErrorKind::kArgument, call);
    const auto merged = call();
    snapshots_.erase(snapshots_.begin() + static_cast<std::ptrdiff_t>(std::max(a, b)));
    snapshots_.erase(snapshots_.begin() + static_cast<std::ptrdiff_t>(std::min(a, b)));
    keep(merged, second.state, first.start, second.end);
  }

  void forget() {
    if (below(2) == 0) {
      if (KeptSnapshot* kept = any(snapshots_)) snapshots_.erase(snapshots_.begin() + (kept - snapshots_.data()));
    } else if (Kept* kept = any(kept_)) {
      kept_.erase(kept_.begin() + (kept - kept_.data()));
    }
  }

  void schedule() {
    const SequenceId id = below(2) == 0 || known_number() < 0 ? user_number() : known_number();
    const std::int32_t length = length_of(id);
    std::set<std::int32_t> offsets;
    for (std::uint32_t i = 1 + below(3); i > 0; --i) offsets.insert(between(length, length + 7));
    const std::vector<std::int32_t> list(offsets.begin(), offsets.end());
    const auto call = [&] { cache_->prepare_snapshots(id, list); };
    if (find(id) != nullptr && !find(id)->schedule.empty()) return expect_refused(ErrorKind::kArgument, call);
    if (!change(id, call)) return;
    Twin& twin = twins_[id];
    std::int32_t start = length;
    for (const std::int32_t offset : list) {
      twin.schedule.push_back({offset, start, offset == length ? twin.state : nullptr});
      start = offset;
    }
  }

  void drain() {
    const SequenceId id = known_number();
    const auto captured = cache_->take_snapshots(id);
    Twin* twin = find(id);
    expect(captured.size() == (twin == nullptr ? 0 : twin->schedule.size()), "the number of captures");
    for (std::size_t i = 0; i < captured.size(); ++i) {
      const TwinCapture& capture = twin->schedule[i];
      keep(captured[i], capture.state, capture.start, capture.offset);
    }
    if (twin == nullptr) return;
    twin->schedule.clear();
    forget_if_empty(id);
  }

  // ---- what the prefix cache does ---------------------------------------------------------------------------------

  // A kept state: of a live sequence, out to host memory, back into a slot, under a sequence.
  void page() {
    Kept* kept = any(kept_);
    if (kept == nullptr || (kept_.size() < 6 && below(3) == 0)) {
      const SequenceId id = known_number();
      if (id < 0 || find(id)->state == nullptr) return;
      kept_.push_back({cache_->slot(id), find(id)->state, find(id)->point(), {}});
    } else if (kept->slot && below(2) == 0) {
      stand(*kept);
    } else if (kept->slot) {
      kept->image.assign(shape_.bytes_per_slot(), std::byte{0});
      cache_->store_image(HeldState(kept->slot), kept->image.data())->wait();
      kept->slot.reset();
      kept->state.reset();
    } else if (free() > 0) {
      kept->slot = cache_->claim(1).slot();
      kept->state = hold(kept->point);
      cache_->load_image(HeldState(kept->slot), kept->image.data())->wait();
      check_slot(kept->slot.slot(), kept->point, "a state that came back");
    } else {
      expect_refused(ErrorKind::kCacheFull, [&] { cache_->claim(1); });
    }
  }

  void stand(const Kept& kept) {
    const SequenceId id = known_number();
    if (id < 0) return;
    const auto call = [&] { cache_->resume(id, kept.point->length, HeldState(kept.slot)); };
    if (change(id, call)) find(id)->state = kept.state;
  }

  void refuse() {
    const SequenceId id = user_number();
    const std::int32_t length = length_of(id);
    const auto bad = [&](auto call) { expect_refused(ErrorKind::kArgument, call); };
    switch (below(7)) {
      case 0:
        return bad([&] { cache_->start_forward(std::vector<std::int32_t>{length + 1}, std::vector<SequenceId>{id}); });
      case 1:
        return bad([&] { cache_->remove(id, length + 1); });
      case 2:
        return bad([&] { cache_->copy_prefix(99, id, 0); });
      case 3:
        return bad([&] { cache_->snapshot(id, -1); });
      case 4:
        return bad([&] { cache_->prepare_snapshots(id, {length - 1}); });
      case 5:
        return bad([&] { cache_->begin(std::vector<ForwardRows>{{99, 1, {}}}); });
      default:
        return bad([&] { cache_->resume(99, 0, {}); });
    }
  }
};

StateShape shape_of(std::uint64_t round) {
  static constexpr std::array<std::uint32_t, 6> kSlots{1, 2, 4, 7, 12, 40};
  StateShape shape;
  shape.layers = 2;
  shape.slots = kSlots[round % kSlots.size()];
  if (round % 3 != 1) shape.conv_tail = 2, shape.conv_dim = 3;
  if (round % 3 != 2) shape.v_heads = 2, shape.v_dim = 2, shape.k_dim = 3;
  return shape;
}

int run(std::uint64_t seed, std::uint64_t operations) {
  static constexpr std::uint64_t kRound = 2500;
  std::cout << "recurrent_oracle: seed " << seed << ", operations " << operations << '\n';
  std::uint64_t done = 0;
  for (std::uint64_t round = 0; done < operations; ++round) {
    Driver driver(seed + round, shape_of(round / 2));
    for (std::uint64_t i = 0; i < kRound && done < operations; ++i, ++done) {
      try {
        driver.step();
      } catch (const std::exception& error) {
        std::cout << "operation " << done << " (round " << round << ", step " << i << "): " << error.what() << '\n';
        return 1;
      }
    }
  }
  std::cout << "recurrent_oracle: " << done << " operations agree\n";
  return 0;
}

}  // namespace
}  // namespace kvtrie::oracle

int main(int argc, char** argv) {
  std::uint64_t seed = 20253, operations = kvtrie::oracle::operations_here(50000, 100000, 100000);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--seed") seed = std::stoull(argv[i + 1]);
    if (name == "--operations") operations = std::stoull(argv[i + 1]);
  }
  return kvtrie::oracle::run(seed, operations);
}
