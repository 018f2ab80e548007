// The store's part of a prompt, taken into host memory.
//
// A look-up belongs to one call of `begin` or `restore`. It holds the path that it goes on from, and then what it
// brought, so that making room for what comes next takes none of it away. The mutex is free while the store is asked,
// and what it is asked for is small or has room in the host tier before it comes.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "exchange/exchange.h"
#include "tiers/holds.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kAskedBytes = std::uint64_t{32} << 20;  // of values that one call of the store brings

struct GiveBack {
  std::uint64_t bytes = 0;
  void operator()(ByteBudget* budget) const noexcept { budget->release(bytes); }
};
using Reserved = std::unique_ptr<ByteBudget, GiveBack>;  // bytes of a budget that outlives it

bool begins_with(std::span<const std::byte> longer, std::span<const std::byte> shorter) {
  return shorter.size() <= longer.size() && std::equal(shorter.begin(), shorter.end(), longer.begin());
}

}  // namespace

// Made, used and ended with the prefix cache's mutex held.
class Lookup final : private Asker {
 public:
  Lookup(Exchange& exchange, Cursor& cursor, const SharedPath& path, std::int32_t limit, double deadline, Call& call)
      : owner_(exchange),
        of_(exchange.of_),
        cursor_(cursor),
        call_(call),
        path_(path),
        budget_(of_.namespaces.host_of(cursor.name_space)),
        shared_(exchange.tier_, budget_, [this](std::uint64_t bytes) { return make_room(bytes); }),
        atomic_(cursor.atomic),
        computed_(static_cast<std::size_t>(cursor.computed)),
        limit_(static_cast<std::size_t>(limit)),
        deadline_(deadline),
        time_(of_.gate.now, this),
        share_(std::min(of_.host->cap(), of_.quotas.host(cursor.node->group()).most) / 2) {
    const Path here = of_.planner.find_path(cursor.node, cursor.unpublished());
    known_ = static_cast<std::size_t>(here.matched);
    hold_ = std::make_unique<PathHold>(of_.leases, here.nodes.empty() ? cursor.node : here.nodes.back());
  }

  Lookup(const Lookup&) = delete;
  Lookup& operator=(const Lookup&) = delete;

  // Whether there is more in the tree now than before.
  bool run() {
    const bool answers = call_.outside([&] { return owner_.answers(shared_, path_, time_); });
    if (answers) of_.caches.has_points() ? take_points() : take_cells();
    join_received();
    return any_;
  }

  // Another round may bring more, when what this one brought is on the device.
  bool wants_another() const noexcept { return any_ && stopped_ && !of_.caches.has_points(); }

 private:
  struct Candidate {
    std::size_t block = 0, end = 0;  // the whole blocks in front of it; where the restore point is
    Continuation found;
  };
  // Values that were asked for together: those of the blocks, or behind the blocks, from `first` on.
  struct Ahead {
    std::size_t first = 0;
    std::vector<AskedValue> values;
    Reserved room;  // for all of them

    AskedValue* of(std::size_t block) {
      return block >= first && block - first < values.size() ? &values[block - first] : nullptr;
    }
  };

  std::size_t blocks_known() const { return known_ / kSharedBlock; }

  // ---- the clock, without the mutex --------------------------------------------------------------------------------

  double time() override { return of_.gate.read_clock(); }
  double deadline() const override { return deadline_; }
  void took(std::uint64_t bytes, double began, double ended) override {
    const MutexLock lock(of_.gate.mutex);
    if (of_.gate.clock) of_.costs.asked(bytes, ended - began, ended);
  }

  // ---- asking ahead ------------------------------------------------------------------------------------------------

  // How many of `wanted` values of at most so many bytes can be asked for together now, with room made for them; 1: the
  // next one alone, which needs none.
  std::size_t find_room(std::size_t wanted, std::uint64_t most, Ahead& ahead) {
    ahead = {};
    const std::uint64_t share = std::min((share_ - std::min(share_, taken_)) / 4, kAskedBytes);
    const std::size_t count = std::min<std::uint64_t>({wanted, owner_.tier_->most_keys(), share / most});
    if (count < 2 || path_.has_media()) return 1;
    const std::uint64_t bytes = count * most;
    if (!of_.lower.make_host_room(bytes, MayLose::kAnything, hold_->node()) || !budget_->reserve(bytes)) return 1;
    ahead.room = Reserved(budget_.get(), {bytes});
    return count;
  }

  // The value of a block: asked for ahead, or now together with those up to `last`. Null: it is to be asked for alone.
  AskedValue* block_ahead(std::size_t block, std::size_t last) {
    if (AskedValue* known = blocks_.of(block)) return known;
    const std::uint64_t cells = kSharedBlock * of_.caches.bytes_per_token();
    const std::uint64_t most = std::min(most_of_block(path_, last, cells), owner_.options_.shared.max_value);
    const std::size_t count = find_room(last - block + 1, most, blocks_);
    if (count < 2) return nullptr;
    blocks_.first = block;
    blocks_.values = call_.outside([&] { return shared_.ask_blocks(path_, block, count, most, time_); });
    return blocks_.of(block);
  }

  // The same of the index behind a block.
  AskedValue* index_ahead(std::size_t block, std::size_t last) {
    if (AskedValue* known = indices_.of(block)) return known;
    const std::uint64_t most = std::min(most_of_index(), owner_.options_.shared.max_value);
    const std::size_t count = find_room(last - block + 1, most, indices_);
    if (count < 2) return nullptr;
    indices_.first = block;
    indices_.values = call_.outside([&] { return shared_.ask_indices(path_, block, count, most, time_); });
    return indices_.of(block);
  }

  // ---- full attention alone ----------------------------------------------------------------------------------------

  void take_cells() {
    owner_.of_.gate.mutex.assert_held();  // as the class says
    while (blocks_known() < path_.blocks() && take_block(path_.blocks())) {
    }
    blocks_ = {};
    const std::size_t block = blocks_known();
    const std::size_t rest = path_.tokens() - block * kSharedBlock;
    if (stopped_ || rest == 0 || !owner_.is_worth_asking(cursor_, rest)) return;
    const SharedIndex index = call_.outside([&] { return shared_.get_index(path_, block, time_); });
    const FoundContinuation found = find_continuation(index, path_.bytes(block * kSharedBlock, path_.tokens()));
    if (found.cells == nullptr || block * kSharedBlock + found.common <= known_) return;
    ReceivedSnapshot received = call_.outside([&] { return shared_.get_cells(path_, block, *found.cells, time_); });
    const bool whole = count_tokens(found.cells->tokens) == kSharedBlock;
    if (add(std::move(received),
            path_.key_behind(whole ? SharedKind::kBlock : SharedKind::kTail, block, found.cells->tokens)))
      known_ = block * kSharedBlock + found.common;
  }

  // The next block of the prompt, of which those up to `last` are wanted. A model without full attention has nothing in
  // it: that it is there says that the path goes on.
  bool take_block(std::size_t last) {
    const std::size_t block = blocks_known() + 1;
    AskedValue* const asked = block_ahead(block, last);
    ReceivedSnapshot received = call_.outside([&] { return shared_.get_block(path_, block, time_, asked); });
    const std::string key = path_.block_key(block);
    if (of_.caches.full.empty() ? received.answer != SharedAnswer::kHit : !add(std::move(received), key)) return false;
    known_ = block * kSharedBlock;
    return true;
  }

  // ---- with restore points -----------------------------------------------------------------------------------------

  void take_points() {
    std::vector<Candidate> candidates = walk();
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.end > b.end; });
    for (const Candidate& each : candidates) {
      if (take_candidate(each)) return;
    }
  }

  // Along the indices from where the session stands, as far as blocks of the prompt are known here or there. A block
  // that an index forgot is asked for itself.
  std::vector<Candidate> walk() {
    std::vector<Candidate> candidates;
    const std::size_t last = (limit_ - 1) / kSharedBlock;
    for (std::size_t block = computed_ / kSharedBlock; block <= last; ++block) {
      AskedValue* const asked = index_ahead(block, last);
      const SharedIndex index = call_.outside([&] { return shared_.get_index(path_, block, time_, asked); });
      const bool goes_on = note(index, block, candidates);
      if (goes_on) owner_.set_known(path_.block_key(block + 1), true);
      if (block == last || goes_on || block < blocks_known()) continue;
      if (!take_block(block + 1)) break;
    }
    indices_ = {};
    return candidates;
  }

  // Adds the restore points that the prompt can use; whether its next block is in the index.
  bool note(const SharedIndex& index, std::size_t block, std::vector<Candidate>& candidates) const {
    const std::size_t start = block * kSharedBlock;
    const std::span<const std::byte> rest = path_.bytes(start, std::max(start, limit_));
    bool goes_on = false;
    for (const Continuation& each : index) {
      if (!begins_with(rest, each.tokens)) continue;
      const std::size_t count = count_tokens(each.tokens).value_or(0);
      goes_on = goes_on || (each.cells && count == kSharedBlock);
      const bool usable = start + count > computed_ && !atomic_.inside(static_cast<std::int32_t>(start + count));
      if (each.point && usable) candidates.push_back({block, start + count, each});
    }
    return goes_on;
  }

  bool take_candidate(const Candidate& each) {
    const std::size_t blocks = each.end / kSharedBlock;  // whole ones up to the point
    if (!of_.caches.full.empty() && blocks > blocks_known()) {
      const std::uint64_t bytes = (blocks - blocks_known()) * kSharedBlock * of_.caches.bytes_per_token();
      if (bytes > share_ - std::min(share_, taken_)) return false;
      while (blocks_known() < blocks) {
        if (!take_block(blocks)) return false;
      }
    }
    blocks_ = {};
    ReceivedSnapshot received = call_.outside([&] { return shared_.get_point(path_, each.block, each.found, time_); });
    return add(std::move(received), path_.key_behind(SharedKind::kTail, each.block, each.found.tokens));
  }

  // ---- into the tree -----------------------------------------------------------------------------------------------

  // Called while the store is asked. Received bytes stay until the session has them: half of the host tier at most.
  bool make_room(std::uint64_t bytes) {
    const MutexLock lock(of_.gate.mutex);
    const bool fits = !of_.gate.closed && bytes <= share_ - std::min(share_, taken_) &&
                      of_.lower.make_host_room(bytes, MayLose::kAnything, hold_->node());
    stopped_ = stopped_ || !fits;
    return fits;
  }

  // Whether it is in the tree now.
  bool add(ReceivedSnapshot received, const std::string& key) {
    of_.gate.mutex.assert_held();  // as the class says
    if (received.answer != SharedAnswer::kHit) {
      owner_.set_known(key, false);
      return false;
    }
    Imported found;
    const auto image = [&](std::size_t n) { return received.images[n]; };
    const SnapshotFault fault = of_.imports.translate(received.header, image, found);
    if (of_.caches.full.empty()) found.start = 0;  // nothing lies in between
    if (of_.trie.match(found.name_space, found.tokens).length == static_cast<std::int32_t>(found.tokens.size()))
      for (std::vector<BlobSlice>& cells : found.cells) cells.clear();
    Node* node = fault == SnapshotFault::kNone ? of_.imports.add(found, of_.gate.now) : nullptr;
    if (node == nullptr) {
      ++of_.totals.unusable_snapshots;
      return false;
    }
    auto hold = std::make_unique<PathHold>(of_.leases, node);
    hold_ = std::move(hold);
    owner_.set_known(key, true);
    any_ = true;
    std::uint64_t bytes = 0;
    for (const BlobPtr& blob : received.images) bytes += blob->bytes();
    taken_ += bytes;
    const MutexLock lock(owner_.mutex_);
    ++owner_.totals_.received;
    owner_.totals_.received_bytes += bytes;
    return true;
  }

  // One node for what came one after the other.
  void join_received() {
    const std::vector<Node*> path = path_up_from(hold_->node());
    hold_ = nullptr;
    for (std::size_t i = path.size(); any_ && i-- > 1;) of_.removal.try_join(path[i]);
  }

  Exchange& owner_;
  const ExchangedTree& of_;
  const Cursor& cursor_;
  Call& call_;
  const SharedPath& path_;
  const std::shared_ptr<ByteBudget> budget_;
  const SharedExchange shared_;
  const AtomicSpans& atomic_;
  const std::size_t computed_, limit_;
  const double deadline_;
  const CallTime time_;        // of all that this asks
  const std::uint64_t share_;  // bytes that may come in one look-up
  Ahead blocks_, indices_;
  std::size_t known_ = 0;               // tokens of the prompt that are in the tree
  std::unique_ptr<PathHold> hold_;      // of what this builds on
  std::uint64_t taken_ = 0;             // bytes that came
  bool any_ = false, stopped_ = false;  // something came; something was refused for lack of room
};

ReusePlan Exchange::advance(Cursor& cursor, std::int32_t limit, Call& call) {
  of_.gate.mutex.assert_held();  // by the caller
  ReusePlan report = of_.page_in.advance(cursor, limit, call);
  const auto worth_asking = [&]() KVTRIE_REQUIRES(of_.gate.mutex) {
    return may_share(cursor.name_space) && report.reason.code != ReasonCode::kNoRoom &&
           limit - cursor.computed >= options_.min_tokens &&
           is_worth_asking(cursor, static_cast<std::size_t>(limit - cursor.computed));
  };
  if (!worth_asking()) return report;
  const Tokens keys = cursor.recorded_keys();
  const std::vector<SnapshotMedia> media = media_of(keys);
  if (!is_portable(media)) return report;
  const SharedPath path(scope(cursor.name_space), keys, media);
  const double deadline = of_.gate.now + options_.deadline;
  for (bool again = true; again && worth_asking();) {
    const std::int32_t before = cursor.computed;
    if (before > 0 && of_.page_in.host_is_busy())
      of_.page_in.wait_for_host(call);  // what came before is on its way to the device
    require_usable(cursor);
    {
      Lookup lookup(*this, cursor, path, limit, deadline, call);
      if (!lookup.run()) return report;
      again = lookup.wants_another();
    }
    require_usable(cursor);
    ReusePlan more = of_.page_in.advance(cursor, limit, call);
    if (report.matched > more.matched) {  // what was known was dropped meanwhile: its bytes were wrong
      more.matched = report.matched;
      if (more.reason.code == ReasonCode::kNone) more.reason = report.reason;
    }
    more.bytes_moved += report.bytes_moved;
    more.tier = cursor.computed > before ? Tier::kStore : report.tier;
    report = std::move(more);
    again = again && cursor.computed > before;
  }
  return report;
}

}  // namespace kvtrie
