// A whole conversation, every call of which passes through one place, where a test lets something fail.
//
// Concept. The same calls are made again and again, each time with another fault: prompts are computed, published,
// branched, gone back in, batched, drafted, paged out to each tier and brought back, pinned, evicted, saved, and found
// again by a second cache on the same folder or store. A call that fails must have done nothing, or what it was there
// for:
//
//     before the call     tokens and length of every session, what the tree knows
//     it throws           an error by name, or there was no memory
//     afterwards          `check()` finds nothing; tokens are the same, no session is shorter, all rows are their own;
//                         the tree knows what it knew, unless making room for it was a part of the call
//     the same call again succeeds, once the fault is over
//
// At the end every path that the tree knows is begun and read, caches are closed, and everything is given back.
//
// Threads: one drives it. K, V and states name their prefix (coding_process.h).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "coding_process.h"
#include "failing_allocations.h"
#include "faulty_file_system.h"
#include "store_shared_helpers.h"

namespace kvtrie::test {

// Where a conversation's caches have their state besides the device, and how much of it.
struct TalkWorld {
  Kinds kinds;
  bool disk = false, store = false;
  VictimPolicy policy = VictimPolicy::kLru;
  Cell cells = 1000;
  std::string name() const {
    return std::string(kinds.name) + (disk ? "Disk" : "") + (store ? "Store" : "") + (cells < 1000 ? "Small" : "");
  }
};
inline std::ostream& operator<<(std::ostream& out, const TalkWorld& world) { return out << world.name(); }

// What a test lets fail. Both are called around each call of the library, by the thread that makes it.
class TalkFault {
 public:
  virtual ~TalkFault() = default;
  virtual void begin_call(const char* /*name*/) noexcept {}
  virtual void end_call() noexcept {}
  // Around what the cache's own threads do between two calls.
  virtual void begin_settling() noexcept {}
  virtual void end_settling() noexcept {}
  // Whether what failed may have been the reason for this exception: anything else is a failure of the test.
  virtual bool explains(const std::exception& /*error*/) const { return false; }
  // Whether state may have been lost on its way to or from a device: then it is known no longer, and sessions that
  // stood on it say so.
  virtual bool loses() const { return false; }
};

class Talk {
 public:
  enum class May : std::uint8_t { kNothing, kForget, kLearn };  // what may become of the tree when a call fails

  Talk(TalkWorld world, TalkFault& fault) : world_(std::move(world)), fault_(fault) {
    files = std::make_shared<FaultyFileSystem>();
    values = world_.store ? std::make_shared<testing::MapStore>() : nullptr;
  }
  ~Talk() { end(); }
  Talk(const Talk&) = delete;
  Talk& operator=(const Talk&) = delete;

  void run() {
    try {
      make_calls();
    } catch (const Over&) {  // a failure was reported: what follows would only repeat it
    }
  }
  std::uint64_t refused_calls() const noexcept { return refused_; }
  const std::string& trail() const noexcept { return trail_; }  // the names of the calls that were refused

  std::shared_ptr<FaultyFileSystem> files;
  std::shared_ptr<testing::MapStore> values;
  std::shared_ptr<RemoteStore> store;               // what the caches are given; null: `values`
  cl::DevicePtr device;                             // that has the caches; null: host memory has them
  std::function<double()> clock;                    // null: a second for each reading
  bool finds_again = true;                          // what was saved is in the folder when it is opened again
  bool may_forget = false;                          // at any time, as the clock is of no use
  std::function<void(PrefixCacheOptions&)> adjust;  // of every cache that is made
  // Called before everything is saved: whether all of it can be.
  std::function<bool()> before_flush = [] { return false; };
  std::function<void()> before_reopening = [] {};
  void look_at_it() { process_->cache->stats(); }
  void let_time_pass(double seconds) { seconds_ += seconds; }
  // What the cache's own threads have to do is done, and what failed of it is known.
  void settle() {
    if (process_ == nullptr) return;
    PrefixCacheState& state = process_->cache->state();
    fault_.begin_settling();
    if (state.writer != nullptr) state.writer->drain();
    if (state.exchange != nullptr) state.exchange->drain();
    fault_.end_settling();
  }

 private:
  struct Over {};
  static void end_if_failed() {
    if (::testing::Test::HasFailure()) throw Over();
  }
  void make_calls() {
    open();
    first_turns();
    together();
    look();
    leave();
    come_back();
    go_on_alone();
    keep();
    change_limits();
    save();
    close();
    open_again();
    forget();
    close();
  }
  struct Open {
    SessionPtr session;
    std::string name_space;
    Tokens tokens;  // that are recorded in it
    std::int32_t length = 0;
  };
  using Paths = std::set<std::pair<std::string, Tokens>>;

  // ---- calls --------------------------------------------------------------------------------------------------------

  // Whether the call was made without an exception.
  template <class Call>
  bool attempt(const char* name, Call&& call) {
    std::string why;
    bool explained = false, done = false;
    replace_lost();
    fault_.begin_call(name);
    try {
      call();
      done = true;
    } catch (const std::exception& error) {
      fault_.end_call();
      why = error.what();
      explained = fault_.explains(error);
    } catch (...) {
      fault_.end_call();
      why = "no std::exception";
    }
    if (done) {
      fault_.end_call();
      return true;
    }
    ++refused_;
    trail_ += std::string(trail_.empty() ? "" : ", ") + name;
    EXPECT_TRUE(explained) << name << ": " << why;
    end_if_failed();
    return false;
  }

  // A call that is made again when it fails, and succeeds then.
  template <class Call>
  void call(const char* name, Call&& call, May may = May::kNothing) {
    const Paths before = known();
    for (int i = 0; i < kAttempts; ++i) {
      if (attempt(name, call)) return note();
      expect_sound(name, before, may);
    }
    ADD_FAILURE() << name << " fails " << kAttempts << " times";
    end_if_failed();
  }

  Paths known() {
    Paths paths;
    if (process_ == nullptr || process_->cache->closed()) return paths;
    const std::vector<NodeInfo> nodes = process_->cache->nodes();
    std::vector<bool> inner(nodes.size());
    for (const NodeInfo& node : nodes) {
      if (node.parent >= 0) inner[static_cast<std::size_t>(node.parent)] = true;
    }
    std::vector<Tokens> whole(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].parent >= 0) whole[i] = whole[static_cast<std::size_t>(nodes[i].parent)];
      whole[i].insert(whole[i].end(), nodes[i].tokens.begin(), nodes[i].tokens.end());
      if (!inner[i] && !whole[i].empty()) paths.emplace(nodes[i].name_space, whole[i]);
    }
    return paths;
  }

  static bool among(const Paths::value_type& path, const Paths& paths) {
    return std::any_of(paths.begin(), paths.end(), [&](const auto& each) {
      return each.first == path.first && each.second.size() >= path.second.size() &&
             std::equal(path.second.begin(), path.second.end(), each.second.begin());
    });
  }

  // What every call leaves behind, and one that failed in particular.
  void expect_sound(const char* name, const Paths& before, May may) {
    settle();
    expect_no_findings(name);
    for (Open& each : open_) expect_own(each, name);
    end_if_failed();
    if (world_.cells < 1000) return;  // room is made before anything else may fail
    const Paths after = known();
    for (const auto& path : before)
      EXPECT_TRUE(may == May::kForget || may_forget || fault_.loses() || among(path, after))
          << name << ": " << path.second.size() << " tokens are lost";
    for (const auto& path : after)
      EXPECT_TRUE(may == May::kLearn || among(path, before))
          << name << ": " << path.second.size() << " tokens appeared";
    end_if_failed();
  }
  void expect_no_findings(const char* name) {
    if (process_ == nullptr) return;
    const std::vector<std::string> findings = process_->cache->check();
    EXPECT_TRUE(findings.empty()) << "after " << name << ": " << findings.front();
  }
  void expect_own(Open& each, const char* name) {
    if (each.session == nullptr || each.session->closed()) return;
    EXPECT_EQ(each.session->tokens(), each.tokens) << name;
    EXPECT_GE(each.session->length(), each.length) << name;
    verify(*each.session, each.name_space, each.tokens);
    each.length = each.session->length();
  }
  // A command that failed is reported to whoever waits next, which may be this.
  void verify(const Session& session, const std::string& name_space, const Tokens& tokens) {
    let_arrive(session);
    if (is_lost(session)) {
      EXPECT_TRUE(fault_.loses()) << "a session was lost";
      return;
    }
    try {
      process_->verify(session, name_space, tokens);
    } catch (const Error& error) {
      EXPECT_TRUE(fault_.explains(error)) << error.what();
      end_if_failed();
      process_->verify(session, name_space, tokens);
    }
  }
  // It is known afterwards whether what it stands on came.
  void let_arrive(const Session& session) {
    PrefixCacheState& state = process_->cache->state();
    std::vector<CompletionPtr> under_way;
    {
      const MutexLock lock(state.gate.mutex);
      under_way = state.pending_loads.under_way();
    }
    PendingLoads::wait_for(under_way);
    session.length();
  }
  void note() {
    for (Open& each : open_) {
      if (each.session != nullptr && !each.session->closed()) each.length = each.session->length();
    }
  }

  // Sessions that stood on what was lost begin again, and are where they were.
  void replace_lost() {
    for (Open& each : open_) {
      if (each.session == nullptr || each.session->closed() || !is_lost(*each.session)) continue;
      EXPECT_TRUE(fault_.loses());
      end_if_failed();
      each.session->close();
      const std::int32_t length = each.length > 0 ? each.length : static_cast<std::int32_t>(each.tokens.size());
      const Tokens computed(each.tokens.begin(), each.tokens.begin() + length);
      each.session = process_->cache->begin(each.name_space, computed);
      while (const StepPtr step = each.session->next_prefill(64)) process_->compute(*step, each.name_space, computed);
      each.session->append({each.tokens.begin() + length, each.tokens.end()});
    }
  }
  static bool is_lost(const Session& session) { return PrefixCacheState::cursor_of(session).failed; }

  // ---- steps --------------------------------------------------------------------------------------------------------

  // Whether every layer was taken; it ends where one is refused.
  bool put_all(Step& step, const std::vector<std::pair<std::string, Tokens>>& rows) {
    bool done = true;
    process_->put_all(step, rows, [&](const std::function<void()>& put) {
      done = done && attempt("put", put);
      return done;
    });
    return done;
  }

  // What a model does with a step, layer by layer.
  void compute(StepPtr& step, std::span<Open* const> of) {
    const Paths before = known();
    std::vector<std::pair<std::string, Tokens>> rows;
    for (const Open* each : of) rows.emplace_back(each->name_space, each->tokens);
    const bool done = put_all(*step, rows);
    call("end of a step", [&] { step.reset(); });
    if (!done) expect_sound("put", before, May::kLearn);  // an open one has moved some caches on already
    note();
  }

  void prefill(Open& each, std::uint32_t chunk) {
    for (int i = 0; i < 20; ++i) {
      StepPtr step;
      call("prefill", [&] { step = each.session->next_prefill(chunk); });
      if (step == nullptr) break;
      Open* const of[] = {&each};
      compute(step, of);
    }
    EXPECT_EQ(each.session->length(), static_cast<std::int32_t>(each.tokens.size()));
    verify(*each.session, each.name_space, each.tokens);
  }
  void decode(Open& each, Token token) {
    append(each, {token});
    for (int i = 0; i < kAttempts && each.session->length() < each.session->recorded(); ++i) {
      StepPtr step;
      call("decode", [&] { step = each.session->decode(); });
      if (step == nullptr) return;
      Open* const of[] = {&each};
      compute(step, of);
    }
    EXPECT_EQ(each.session->length(), static_cast<std::int32_t>(each.tokens.size()));
  }
  // A step of drafts: of those that are right nothing is lost, of the others nothing is left.
  void propose(Open& each, const Tokens& drafts, std::uint32_t right) {
    for (int i = 0; i < kAttempts; ++i) {
      const Paths before = known();
      StepPtr step;
      call("propose", [&] { step = each.session->propose(drafts); });
      Tokens all = each.tokens;
      all.insert(all.end(), drafts.begin(), drafts.end());
      if (put_all(*step, {{each.name_space, all}})) {
        EXPECT_EQ(step->undecided(), true);
        EXPECT_TRUE(accept(*step, right)) << "accept drafts fails " << kAttempts << " times";
        each.tokens.insert(each.tokens.end(), drafts.begin(), drafts.begin() + right);
        note();
        expect_own(each, "accept drafts");
        return;
      }
      call("end of a step", [&] { step.reset(); });
      expect_sound("put", before, May::kNothing);
    }
    ADD_FAILURE() << "a step of drafts fails " << kAttempts << " times";
  }
  // The same with a tree of drafts, of which one path is taken.
  void propose_tree(Open& each, const std::vector<Tokens>& paths, std::size_t path, std::uint32_t right) {
    for (int i = 0; i < kAttempts; ++i) {
      const Paths before = known();
      StepPtr step;
      call("propose tree", [&] {
        const std::vector<std::span<const Token>> spans(paths.begin(), paths.end());
        step = each.session->propose_tree(spans);
      });
      std::vector<std::pair<std::string, Tokens>> rows;
      for (const Tokens& drafts : paths) {
        rows.emplace_back(each.name_space, each.tokens);
        rows.back().second.insert(rows.back().second.end(), drafts.begin(), drafts.end());
      }
      if (put_all(*step, rows)) {
        bool done = false;
        for (int n = 0; n < kAttempts && !done; ++n)
          done = attempt("accept a path", [&] { step->accept_path(path, right); });
        EXPECT_TRUE(done) << "accept a path fails " << kAttempts << " times";
        each.tokens.insert(each.tokens.end(), paths[path].begin(), paths[path].begin() + right);
        note();
        expect_own(each, "accept a path");
        return;
      }
      call("end of a step", [&] { step.reset(); });
      expect_sound("put", before, May::kNothing);
    }
    ADD_FAILURE() << "a step of a tree of drafts fails " << kAttempts << " times";
  }
  // While a step is undecided its caches stand at its end: only what comes of it is looked at.
  bool accept(Step& step, std::uint32_t right) {
    const std::uint32_t counts[] = {right};
    bool done = false;
    for (int i = 0; i < kAttempts && !done; ++i) done = attempt("accept drafts", [&] { step.accept(counts); });
    return done;
  }
  void append(Open& each, const Tokens& more) {
    call("append", [&] { each.session->append(more); });
    each.tokens.insert(each.tokens.end(), more.begin(), more.end());
  }
  void batch(std::span<Open* const> of) {
    const auto sessions_now = [&of] {
      std::vector<SessionPtr> sessions;
      for (const Open* each : of) sessions.push_back(each->session);
      return sessions;
    };
    for (int i = 0; i < kAttempts; ++i) {
      const std::vector<SessionPtr> sessions = sessions_now();
      const auto ready = [](const SessionPtr& each) { return each->length() < each->recorded(); };
      if (std::none_of(sessions.begin(), sessions.end(), ready)) return;
      if (!std::all_of(sessions.begin(), sessions.end(), ready)) break;  // one of them had to do without the step
      StepPtr step;
      call("batch", [&] { step = process_->cache->batch(sessions_now(), 64); });
      if (step == nullptr) return;
      compute(step, of);
    }
    for (Open* each : of) prefill(*each, 64);
  }

  Open& begin(const Tokens& tokens, const std::string& name_space = "n", bool use = true) {
    Open each{nullptr, name_space, tokens, 0};
    BeginOptions options;
    options.use = use;
    // What a store had stays, also when the call fails then.
    const May may = world_.store ? May::kLearn : May::kNothing;
    call(
        "begin", [&] { each.session = process_->cache->begin(name_space, tokens, options); }, may);
    open_.push_back(std::move(each));
    if (open_.back().session != nullptr) verify(*open_.back().session, name_space, tokens);
    return open_.back();
  }
  void close(Open& each) {
    call("close session", [&] { each.session->close(); });
    each.session.reset();
  }
  void close_all() {
    for (Open& each : open_) {
      if (each.session != nullptr) close(each);
    }
    open_.clear();
  }

  // ---- the conversation ---------------------------------------------------------------------------------------------

  static constexpr int kAttempts = 4;

  void open() {
    if (process_ == nullptr) {
      PrefixCacheOptions options;
      options.policy = world_.policy;
      options.checkpoint_every = 32;
      options.load = LoadPolicy::kAlways;
      options.suffix_index_tokens = 64;
      options.clock = clock ? clock : [this] {
        const testing::AllocationsOfTest mine;
        return seconds_ += 1;
      };
      const auto make = [&] {
        process_ = std::make_unique<Process>(world_.kinds, nullptr, options, world_.cells, DType::kFloat32, device);
      };
      device == nullptr ? make() : call("make caches", make);
      options_ = process_->cache->options();
      process_->cache->close();
      options_.store = store_given();
      if (world_.disk) {
        options_.files = files;
        options_.disk = "/disk";
        options_.disk_bytes = 1 << 22;
      }
      if (adjust) adjust(options_);
    }
    call("create", [&] { process_->cache = PrefixCache::create(process_->caches(), options_); });
  }
  std::shared_ptr<RemoteStore> store_given() const {
    if (!world_.store) return nullptr;
    return store != nullptr ? store : values;
  }

  void first_turns() {
    open_.reserve(16);
    Open& a = begin(prompt(90, 1, 60));
    prefill(a, 40);
    for (const Token token : {7, 8}) decode(a, token);
    call("suffixes", [&] { a.session->suffix_continuation(4); });
    Open& other = begin(prompt(70, 2, 60));  // diverges at 60
    prefill(other, 100);
    Open& stranger = begin(prompt(50, 1, 60), "m");  // the same tokens, nobody else's
    prefill(stranger, 100);
    close(stranger);
  }
  void together() {
    Open& a = open_[0];
    Open twin{nullptr, a.name_space, a.tokens, 0};
    call("branch", [&] { twin.session = a.session->branch(); });
    open_.push_back(std::move(twin));
    Open& b = open_.back();
    append(a, {11});
    append(b, {12, 13});
    Open* const of[] = {&a, &b};
    batch(of);
    call("checkpoint", [&] { a.session->checkpoint(); });
    std::int32_t to = 0;
    for (std::int32_t length = 91; length > 0 && to == 0; --length) {
      if (b.session->can_rewind(length)) to = length;
    }
    Tokens shorter(b.tokens.begin(), b.tokens.begin() + to);
    for (int i = 0; i < kAttempts; ++i) {
      const Paths before = known();
      if (attempt("rewind", [&] { b.session->rewind(to); })) break;
      expect_sound("rewind", before, May::kNothing);
    }
    b.tokens = std::move(shorter);
    b.length = to;
    expect_own(b, "rewind");
    append(b, {21, 22});
    prefill(b, 64);
  }
  void look() {
    PrefixCache& cache = *process_->cache;
    call("plan", [&] { EXPECT_TRUE(may_forget || cache.plan("n", prompt(90, 1, 60)).matched > 0); });
    call("stats", [&] { EXPECT_GT(cache.stats().nodes, 0u); });
    call("nodes", [&] { EXPECT_GT(cache.nodes().size(), 0u); });
    call("check", [&] { EXPECT_TRUE(cache.check().empty()); });
    for (const NodeInfo& node : cache.nodes()) EXPECT_GE(node.age_seconds, 0);
    call("tokens", [&] { EXPECT_EQ(open_[0].session->tokens().size(), open_[0].tokens.size()); });
  }
  void leave() {
    close_all();
    PrefixCache& cache = *process_->cache;
    call(
        "page_out", [&] { cache.page_out("n", prompt(70, 2, 60)); }, May::kForget);
    call(
        "page_out_bytes",
        [&] {
          if (!may_forget) cache.page_out_bytes(16);
        },
        May::kForget);
    if (world_.disk)
      call(
          "page_out to disk", [&] { cache.page_out("n", prompt(90, 1, 60), Tier::kDisk); }, May::kForget);
    if (world_.store)
      call(
          "page_out to store", [&] { cache.page_out("n", prompt(90, 1, 60), Tier::kStore); }, May::kForget);
    page_out_everything(Tier::kHost);
  }
  void page_out_everything(Tier to) {
    for (const auto& [name_space, tokens] : known())
      call(
          "page_out", [&, ns = name_space, path = tokens] { process_->cache->page_out(ns, path, to); }, May::kForget);
  }
  void come_back() {
    Tokens longer = prompt(90, 1, 60);
    longer.insert(longer.end(), {7, 8, 30, 31, 32});
    Open& a = begin(longer);
    prefill(a, 40);
    decode(a, 9);
    call(
        "restore", [&] { process_->cache->restore("n", prompt(70, 2, 60)); }, May::kForget);
    close_all();
  }
  // Nobody else uses what it computes; and its history can be cut where cells can be moved.
  void go_on_alone() {
    Open& own = begin(prompt(80, 3), "alone", /*use=*/false);
    prefill(own, 64);
    append(own, {4});
    propose(own, {40, 41, 42}, 2);
    append(own, {6});
    propose_tree(own, {{40, 41, 42}, {40, 43}}, 1, 1);
    append(own, {5});
    std::optional<Tokens> left;
    const std::int32_t before = own.session->length();
    const Paths paths = known();
    for (int i = 0; i < kAttempts; ++i) {
      if (attempt("shift", [&] { left = own.session->shift(8); })) break;
      expect_sound("shift", paths, May::kNothing);
    }
    if (!left) {
      EXPECT_LT(own.session->length(), before);
      own.tokens = own.session->tokens();
    }
    close_shifted(own, left.has_value());
  }
  // Rows that were moved say where they were: nothing but the counts is compared.
  void close_shifted(Open& own, bool unshifted) {
    if (unshifted) return close_all();
    call("close session", [&] { own.session->close(); });
    own.session.reset();
    close_all();
  }
  void keep() {
    PrefixCache& cache = *process_->cache;
    const Tokens tokens = prompt(60, 1, 60);
    call("pin", [&] { cache.pin("n", tokens, 1000.0); });
    call("pin again", [&] { cache.pin("n", tokens); });
    while (cache.stats().pins > 0) {
      call("unpin", [&] { cache.unpin("n", tokens); });
    }
  }
  void change_limits() {
    PrefixCache& cache = *process_->cache;
    Limits lower, higher;
    lower.held_cells.assign(cache.caches().size(), 200);
    lower.host_bytes = cache.host_cap() / 2;
    higher.held_cells.assign(cache.caches().size(), world_.cells);
    higher.host_bytes = cache.host_cap();
    call(
        "set_limits", [&] { cache.set_limits(lower); }, May::kForget);
    call(
        "set_limits", [&] { cache.set_limits(higher); }, May::kForget);
  }
  void save() {
    PrefixCache& cache = *process_->cache;
    Open& more = begin(prompt(100, 4, 60));
    prefill(more, 64);
    close_all();
    const bool all = before_flush();
    bool done = false;
    if (world_.disk || world_.store)
      call(
          "flush", [&] { done = cache.flush(); }, May::kForget);
    EXPECT_TRUE(done || !all) << "the disk is back, but not all was written";
    if (world_.disk)
      call(
          "save", [&] { cache.save("/other"); }, May::kForget);
  }
  void close() {
    if (process_ == nullptr) return;
    close_all();
    read_everything();
    call(
        "close", [&] { process_->cache->close(); }, May::kForget);
    expect_nothing_held();
  }
  // Each path is brought back, and what comes is its own.
  void read_everything() {
    settle();
    for (const auto& [name_space, tokens] : known()) {
      BeginOptions options;
      options.reuse_all = true;
      options.always_load = true;
      SessionPtr session;
      call(
          "read", [&, ns = name_space, path = tokens] { session = process_->cache->begin(ns, path, options); },
          May::kLearn);
      if (name_space != "alone") verify(*session, name_space, tokens);
    }
    expect_no_findings("everything was read");
  }
  void expect_nothing_held() {
    EXPECT_EQ(process_->cache->stats().sessions, 0u);
    for (const auto& each : process_->attention()) EXPECT_EQ(each->usage().held, 0u);
    for (const auto& each : process_->caches().states) EXPECT_EQ(each->free_units(), each->capacity());
    EXPECT_EQ(process_->cache->state().host->used(), 0u);
  }
  void open_again() {
    before_reopening();
    open();
    Open& again = begin(prompt(90, 1, 60));
    EXPECT_TRUE(!world_.disk || !finds_again || fault_.loses() || again.session->matched() > 0)
        << "nothing was found in the folder";
    prefill(again, 64);
    close_all();
  }
  void forget() {
    PrefixCache& cache = *process_->cache;
    call(
        "evict_bytes",
        [&] {
          if (!may_forget) cache.evict_bytes(16);
        },
        May::kForget);
    call(
        "evict", [&] { cache.evict("n", prompt(90, 1, 60)); }, May::kForget);
  }
  void end() {
    open_.clear();
    if (process_ != nullptr && !process_->cache->closed()) process_->cache->close();
    process_.reset();
  }

  const TalkWorld world_;
  TalkFault& fault_;
  std::unique_ptr<Process> process_;
  PrefixCacheOptions options_;
  std::vector<Open> open_;
  double seconds_ = 0;
  std::uint64_t refused_ = 0;
  std::string trail_;
};

}  // namespace kvtrie::test
