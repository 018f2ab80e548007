// One world of a simulated day: users who chat, a process that serves them, and what happens to it in 24 hours.
//
//     arrivals   diurnal, as many as requests          users      turns, edits, branches, cancelled prefills, pins
//     events     kills, full disks, stores that go     time       virtual: models, disks and stores let it pass
//
// Everything follows from the seed: one thread calls, queues work only when they are waited for, time is counted. What
// is wrong is thrown as a Violation (day_numbers.h).
#pragma once

#include <array>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "day_disk.h"
#include "day_events.h"
#include "day_server.h"
#include "day_store.h"
#include "day_text.h"
#include "failing_allocations.h"

namespace kvtrie::oracle::day {

// What one world tells at its end. Plain bytes: it comes through a pipe.
struct Report {
  std::array<Figures, 24> hours{};
  std::array<double, 24> pool_share{};  // cells of the device by the tokens that were asked for in the hour
  std::uint64_t requests = 0, digest = 0, checks = 0, audits = 0, lies = 0;
  std::array<std::uint64_t, 3> broken{};         // by Promise
  double virtual_seconds = 0, longest_call = 0;  // the latter of real time
  std::uint64_t longest_call_at = 0;
  // Bytes after the first and the last hour, less what this program itself remembers of all prefixes.
  std::uint64_t resident_first = 0, resident_last = 0;
};

inline std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * 4096;
}

class World {
 public:
  struct Settings {
    std::uint64_t seed = 0, requests = 0;
    std::size_t users = 0;
    bool verbose = false;       // tells each event
    bool short_memory = false;  // with hours in which allocations fail
  };
  explicit World(const Settings& settings)
      : requests_(settings.requests),
        verbose_(settings.verbose),
        random_(settings.seed),
        library_(settings.seed + 1),
        cells_(cells_for(settings)),
        disk_(std::make_shared<DayDisk>(settings.seed + 2, [this](double seconds) { pass(seconds); })),
        store_(
            std::make_shared<DayStore>(settings.seed + 3, 1800ull * cells_, [this](double seconds) { pass(seconds); })),
        events_(settings.seed + 4, settings.short_memory) {
    for (std::size_t i = 0; i < kTenants; ++i) tenants_.push_back(cat("tenant-", i % 5 == 0 ? "x" : "", i));
    for (std::size_t i = 0; i < settings.users; ++i) {
      users_.emplace_back();
      users_.back().tenant = by_tenant_.draw(random_);
      users_.back().keeps_open = random_.chance(0.35);
    }
    std::size_t number = 0;
    for (const test::Kinds& kinds : test::kEvery) models_.push_back({cat("model ", number++, " ", kinds.name), kinds});
    for (const std::size_t again : {0, 4, 5})  // other weights of the same shape
      models_.push_back({cat("model ", number++, " ", models_[again].kinds.name), models_[again].kinds});
    arrive(requests_);
  }
  virtual ~World() {
    open_.clear();
    if (neighbour_ != nullptr) neighbour_->cache->close();
    if (server_ != nullptr) server_->cache->close();
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Report report;
  double now() const { return now_; }
  std::uint64_t request_number() const { return request_; }
  std::string model_name() const { return models_[model_].fingerprint; }
  std::string doing;  // the last request or event

  void run() {
    start(model_, /*promised=*/{});
    for (request_ = 0; request_ < requests_; ++request_) {
      const double at = arrivals_[request_];
      while (const std::optional<Event> event = events_.next(std::max(at, now_))) {
        now_ = std::max(now_, event->time);
        happen(*event);
      }
      now_ = std::max(now_, at);
      step_hour();
      serve();
    }
    finish();
  }

 protected:
  static constexpr std::size_t kTenants = 24;
  static constexpr std::size_t kMostOpen = 40;
  static constexpr std::uint64_t kCheckEvery = 250;  // requests
  const std::string kFolder = "/day/cache";

  struct User {
    std::size_t tenant = 0;
    bool keeps_open = false;
    Text text;                                // the conversation so far
    std::int32_t answer_at = 0, turn_at = 0;  // where the last answer, and the last question, begins
    int turns = 0;
  };
  struct Open {
    std::size_t user = 0;
    std::string name_space;
    SessionPtr session;
    Text text;
    bool kept = true;  // its rows follow from its tokens
  };
  using OpenPtr = std::shared_ptr<Open>;

  // About 30 % of the tokens that are asked for in an hour, of which there are the more the more requests.
  static Cell cells_for(const Settings& settings) {
    const auto users = static_cast<double>(settings.users), requests = static_cast<double>(settings.requests);
    return static_cast<Cell>(std::max(6000.0, 28 * users * std::pow(requests / (20 * users), 0.7)));
  }

  // --- time ------------------------------------------------------------------------------------------------------
  void pass(double seconds) {
    now_ += seconds;
    stall_ += seconds;
  }
  // What the cache's clock says: it stands still, or is wrong by some, at times.
  double clock() { return events_.clock_stands_at ? *events_.clock_stands_at : now_ + events_.clock_error; }

  // Requests come most at 15 h, least at 3 h.
  void arrive(std::uint64_t count) {
    const double day = 86400;
    while (arrivals_.size() < count) {
      const double at = random_.fraction() * day;
      const double rate = 0.5 - 0.42 * std::cos((at / day - 3.0 / 24) * 2 * 3.14159265358979);
      if (random_.fraction() < rate) arrivals_.push_back(at);
    }
    std::sort(arrivals_.begin(), arrivals_.end());
  }

  void step_hour() {
    const auto hour = std::min<std::size_t>(23, static_cast<std::size_t>(now_ / 3600));
    if (hour == hour_) return;
    close_hour();
    hour_ = hour;
    asked_.clear();
  }
  void close_hour() {
    report.pool_share[hour_] =
        asked_.size() == 0 ? 0 : static_cast<double>(cells_) / static_cast<double>(asked_.size());
    const std::uint64_t remembered = known_.bytes() + asked_.bytes();
    report.resident_last = resident_bytes() - std::min(resident_bytes(), remembered);
    if (report.resident_first == 0) report.resident_first = report.resident_last;
  }
  Figures& figures() { return report.hours[hour_]; }
  void note(std::uint64_t value) { report.digest = mix(report.digest, value); }

  // --- the process -----------------------------------------------------------------------------------------------
  PrefixCacheOptions options_here() {
    PrefixCacheOptions options;
    options.clock = [this] { return clock(); };
    options.growth = 16;
    options.checkpoint_every = 128;
    options.host_bytes = host_bytes_;
    options.store = store_;
    options.store_options.max_value = 16384;
    options.load = model_ % 2 == 0 ? LoadPolicy::kAlways : LoadPolicy::kAuto;
    options.policy = model_ % 3 == 0 ? VictimPolicy::kLru : model_ % 3 == 1 ? VictimPolicy::kSlru : VictimPolicy::kCost;
    if (model_ % 4 == 1) options.ttl = 3 * 3600.0;
    return options;
  }

  // A process begins with `model`: what was promised to be in its files is there.
  void start(std::size_t model, const std::vector<KeptPath>& promised) {
    model_ = model;
    host_bytes_ = cells_ * 48ull;
    disk_bytes_ = cells_ * 140ull;
    PrefixCacheOptions options = options_here();
    options.disk = kFolder;
    options.disk_bytes = disk_bytes_;
    options.files = disk_;
    disk_->watch(kFolder, DayDisk::kNoEnd);
    const bool well = disk_->is_well();
    try {
      server_ = std::make_unique<Server>(models_[model], options, cells_, scratch_);
    } catch (const Error& error) {
      keep(!well && error.kind() == ErrorKind::kFormat, "a cache does not open: ", error.what());
      disk_->set_odds(0);  // somebody repairs it
      disk_->set_room(DayDisk::kNoEnd);
      server_ = std::make_unique<Server>(models_[model], options, cells_, scratch_);
    }
    most_host_ = host_bytes_;
    const std::uint64_t own = server_->state().lower.disk()->budget().used(), all = disk_->bytes_in(kFolder);
    keep(own <= disk_bytes_ && own <= all, "the disk tier counts ", own, " bytes of ", all, ", cap ", disk_bytes_);
    foreign_bytes_ = all - own;
    disk_->watch(kFolder, foreign_bytes_ + disk_bytes_);
    if (well) expect_kept(promised);
    PrefixCacheOptions beside = options_here();
    neighbour_host_ = beside.host_bytes /= 4;
    neighbour_ = std::make_unique<Server>(models_[model], beside, cells_ / 3, scratch_);
    if (well) server_->check();
  }

  void expect_kept(const std::vector<KeptPath>& promised) {
    const DiskStats stats = *server_->cache->stats().disk;
    keep(disk_->temporary_files_in(kFolder) == 0, "temporary files are left");
    figures().dropped_for_room += stats.dropped;
    if (stats.dropped > 0) return;  // files that came back from the dead took the room
    for (const KeptPath& path : promised) {
      const bool damaged = std::any_of(path.files.begin(), path.files.end(),
                                       [&](const std::string& file) { return disk_->damaged_names.contains(file); });
      if (damaged) continue;
      if (!server_->knows(path)) miss(path);
      ++figures().kept_paths;
    }
  }

  [[noreturn]] void miss(const KeptPath& path) {
    std::vector<std::string> there;
    static_cast<void>(disk_->list(kFolder, there));
    std::string files, refused;
    const DiskStats stats = *server_->cache->stats().disk;
    for (std::size_t fault = 0; fault < stats.refused.size(); ++fault) {
      if (stats.refused[fault] > 0) refused += cat(", refused for ", fault, ": ", stats.refused[fault]);
    }
    for (const std::string& each : path.files)
      files += cat(" ", each.substr(0, 6), std::find(there.begin(), there.end(), each) != there.end() ? "" : " (gone)");
    break_promise(Promise::kKept, "a path of ", path.keys.size(), " tokens of ", path.name_space, " was in files, now ",
                  server_->state().trie.match(path.name_space, path.keys).length, " are known:", files, "; ",
                  server_->cache->stats().unusable_snapshots, " files of no use", refused);
  }

  void stop() {
    for (const OpenPtr& each : open_) {
      if (random_.chance(0.5)) each->session->close();
    }
    neighbour_->close();
    server_->close();
    open_.clear();  // sessions may outlive their cache
    neighbour_ = nullptr;
    server_ = nullptr;
    if (disk_->open_files() != 0) break_promise(Promise::kLeaks, disk_->open_files(), " files are left open");
  }

  // The machine goes off, perhaps in the middle of something, and comes back with what was synced.
  void die() {
    dying_ = -1;
    disk_->go_dark_after(0);
    const DayStore::Mood mood = std::exchange(store_->mood, DayStore::Mood::kGone);
    const std::vector<KeptPath> promised = server_->kept();
    stop();
    disk_->come_back();
    store_->mood = mood;
    ++figures().kills;
    start(model_, promised);
    audit();
  }

  void restart(std::size_t model) {
    if (dying_ >= 0) return die();
    open_.clear();  // what sessions leave is written, for which other files may go
    if (random_.chance(0.6)) flush();
    server_->state().writer->drain();
    kept_[model_] = server_->kept();
    const bool well = disk_->is_well();
    stop();
    if (well) keep(disk_->temporary_files_in(kFolder) == 0, "temporary files outlive a cache");
    ++(model == model_ ? figures().restarts : figures().swaps);
    start(model, kept_[model]);
    audit();
  }

  void flush() {
    const bool all = server_->cache->flush();
    if (!all || dying_ >= 0) return;
    const std::vector<KeptPath> kept = server_->kept();
    std::uint64_t ends = 0, leaves = 0;
    server_->state().trie.visit([&](Node& node) {
      if (node.is_root()) return;
      ++ends;
      leaves += server_->state().behind.is_saved(&node);
    });
    keep(ends == leaves, "flush said all is in files, and ", ends - leaves, " of ", ends, " nodes are not");
    note(kept.size());
  }

  void audit() {
    ++report.audits;
    const bool well = disk_->is_well();
    server_->audit(disk_->damaged_names, well);
    if (neighbour_ != nullptr) neighbour_->audit({}, well);
    check();
    figures().rows += std::exchange(scratch_.rows, 0);
  }

  void check() {
    ++report.checks;
    server_->check();
    server_->check_stats(most_host_);
    server_->check_files(disk_->names_in(kFolder));
    neighbour_->check();
    neighbour_->check_stats(neighbour_host_);
  }

  void check_budgets() {
    keep(disk_->excess.empty(), disk_->excess);
    server_->check_units();
    neighbour_->check_units();
    const PrefixCacheState& state = server_->state();
    keep(state.host->used() <= state.host->cap(), "host tier at ", state.host->used(), " of ", state.host->cap());
  }

  // --- calls -----------------------------------------------------------------------------------------------------
  // False: it was refused for a reason that there may be. `allowed`: reasons beside a lack of room.
  template <class Call>
  bool call(const char* what, std::initializer_list<ErrorKind> allowed, Call&& make) {
    doing = what;
    testing::allocations_until_failure() = armed_ =
        events_.short_of_memory && random_.chance(0.1) ? 1 + random_.below(300) : 0;
    try {
      make();
      testing::allocations_until_failure() = 0;
      return true;
    } catch (const Error& error) {
      testing::allocations_until_failure() = 0;
      if (error.kind() == ErrorKind::kCacheFull) {
        judge(error);
        ++figures().refused;
        return false;
      }
      keep(std::find(allowed.begin(), allowed.end(), error.kind()) != allowed.end(), what, " failed: ", error.what());
      return false;
    } catch (const std::bad_alloc&) {
      testing::allocations_until_failure() = 0;
      keep(armed_ > 0, what, ": bad_alloc, and there was memory");
      ++figures().no_memory;
      server_->check();
      return false;
    }
  }

  // Full attention alone: what live sessions and pins hold, and what was asked for, was more than there is.
  void judge(const Error& error) {
    if (!server_->dense()) return;
    std::uint64_t held = error.cache_full().needed + server_->cache->stats().pinned_tokens;
    for (const OpenPtr& each : open_) held += static_cast<std::uint64_t>(each->session->recorded()) + 64;
    held += extra_held_;
    keep(held > server_->cells(), "refused, and ", held, " of ", server_->cells(), " cells would do: ", error.what());
  }

  std::int32_t known_prefix(const Text& text) const {
    std::int32_t low = 0, high = text.length();
    while (low < high) {
      const std::int32_t middle = (low + high + 1) / 2;
      if (known_.contains(text.hashes()[static_cast<std::size_t>(middle) - 1])) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
  static bool inside(const Text& text, std::int32_t length) { return text.whole(length) != length; }

  SessionPtr begin(Server& server, const std::string& name_space, const Text& text, const BeginOptions& options) {
    const std::int32_t known = known_prefix(text), limit = text.length() - (options.reuse_all ? 0 : 1);
    const Tokens keys = PrefixCache::keys(text.tokens(), text.groups());
    const ReusePlan plan = server.cache->plan(name_space, keys);
    for (const std::uint64_t hash : text.hashes()) asked_.insert(hash);
    const std::uint64_t failures = server.state().totals.checksum_failures;
    SessionPtr session;
    if (!call("begin", {}, [&] { session = server.cache->begin(name_space, text.tokens(), options); })) return nullptr;
    const std::int32_t matched = session->matched(), reused = session->reused();
    ++server.calls.begins;
    server.calls.hits += reused > 0;
    server.calls.matched += static_cast<std::uint64_t>(matched);
    server.calls.reused += static_cast<std::uint64_t>(reused);
    if (matched > known)
      break_promise(Promise::kBytes, "matched ", matched, " tokens of ", name_space, ", nobody computed more than ",
                    known);
    keep(!inside(text, reused), "reuse ends inside a span, at ", reused, " of ", matched);
    keep(reused <= std::min(matched, limit) && (options.use || reused == 0), "reused ", reused, " of ", matched);
    keep(session->length() == reused && session->recorded() == text.length(), "a session begins at ",
         session->length());
    compare_with_plan(plan, *session, options, server.state().totals.checksum_failures > failures);
    server.verify(*session, text);
    count(server, *session, text, known, limit);
    return session;
  }

  // Less than was planned: there was no room, or bytes came back wrong.
  void compare_with_plan(const ReusePlan& plan, const Session& session, const BeginOptions& options, bool wrong_bytes) {
    if (!options.use || armed_ > 0) return;
    keep(plan.matched <= session.matched(), "the plan matched ", plan.matched, ", begin ", session.matched());
    if (session.reused() >= plan.reusable) return;
    const ReasonCode why = session.reason().code;
    const bool damaged = !disk_->damaged_names.empty() || server_->damaged_in_memory() || !disk_->is_well();
    keep(why == ReasonCode::kNoRoom || (wrong_bytes && damaged), "the plan said ", plan.reusable, " of ", plan.matched,
         " tokens (", name_of(plan.reason.code), "), begin reused ", session.reused(), " of ", session.matched(),
         " from ", name_of(session.tier()), ": ", name_of(why));
    ++figures().tiers_left_out;
  }

  void count(const Server& server, const Session& session, const Text& text, std::int32_t known, std::int32_t limit) {
    const auto reused = static_cast<std::uint64_t>(session.reused());
    note(reused * 8 + static_cast<std::uint64_t>(session.tier()));
    note(session.bytes_moved());
    Figures& here = figures();
    ++here.begins;
    if (&server != server_.get()) {
      ++here.neighbour;
      here.from_neighbour += reused;
    }
    here.prompt_tokens += static_cast<std::uint64_t>(text.length());
    here.matched += static_cast<std::uint64_t>(session.matched());
    here.reused += reused;
    here.known += static_cast<std::uint64_t>(text.whole(std::min(known, limit)));
    std::uint64_t* const by_tier[] = {nullptr, &here.from_device, &here.from_host, &here.from_disk, &here.from_store};
    if (session.tier() != Tier::kNone) *by_tier[static_cast<std::size_t>(session.tier())] += reused;
  }

  void compute(Server& server, Step& step, const std::vector<const Text*>& texts) {
    server.compute(step, texts);
    for (std::size_t row = 0; row < step.tokens().size(); ++row) {
      const Text& text = *texts[static_cast<std::size_t>(step.sequences()[row])];
      known_.insert(text.hashes()[static_cast<std::size_t>(step.positions()[row])]);
    }
    now_ += step.tokens().size() > 8 ? 0.0004 * static_cast<double>(step.tokens().size()) : 0.02;
  }

  // Computes what remains; false: refused, or cancelled half way.
  bool prefill(Server& server, const SessionPtr& session, const Text& text, bool cancel) {
    const auto chunk = static_cast<std::uint32_t>(random_.between(24, 512));
    StepPtr step;
    for (;;) {
      if (!call("prefill", {}, [&] { step = session->next_prefill(chunk, step); })) return false;
      if (step == nullptr) break;
      if (cancel && random_.chance(0.5)) {
        server.compute(*step, {&text}, random_.below(2));
        if (random_.chance(0.5)) step.reset();
        return false;
      }
      compute(server, *step, {&text});
    }
    keep(session->length() == text.length(), "a prefill ends at ", session->length(), " of ", text.length());
    return true;
  }

  bool decode(Open& open, std::int32_t count) {
    for (std::int32_t i = 0; i < count; ++i) {
      const Piece word = Library::words(random_, 1);
      if (!call("append", {ErrorKind::kArgument}, [&] { open.session->append(word.tokens); })) return false;
      open.text.append(word);
      StepPtr step;
      if (!call("decode", {}, [&] { step = open.session->decode(); })) return false;
      compute(*server_, *step, {&open.text});
    }
    return true;
  }

  virtual void serve() = 0;                     // the next request
  virtual void happen(const Event& event) = 0;  // an event

  void finish() {
    testing::allocations_until_failure() = 0;
    doing = "the end of the day";
    if (dying_ >= 0) die();
    audit();
    stop();
    close_hour();
    report.requests = requests_;
    report.lies = store_->lies;
    report.virtual_seconds = now_;
  }

  const std::uint64_t requests_;
  const bool verbose_;
  Random random_;
  const Library library_;
  const Cell cells_;  // of the device
  std::shared_ptr<DayDisk> disk_;
  std::shared_ptr<DayStore> store_;
  Events events_;
  std::vector<std::string> tenants_;
  Zipf by_tenant_{kTenants, 0.8};
  std::vector<User> users_;
  Zipf by_user_{1000, 0.5};
  std::vector<DayModel> models_;
  std::size_t model_ = 0;
  std::map<std::size_t, std::vector<KeptPath>> kept_;  // by model: what it left in files
  std::vector<double> arrivals_;
  std::uint64_t request_ = 0;
  std::size_t hour_ = 0;
  double now_ = 0, stall_ = 0;
  Figures scratch_;  // rows that servers verified
  std::unique_ptr<Server> server_, neighbour_;
  std::uint64_t host_bytes_ = 0, disk_bytes_ = 0, most_host_ = 0, foreign_bytes_ = 0, neighbour_host_ = 0;
  std::vector<OpenPtr> open_;
  std::uint64_t extra_held_ = 0;  // tokens of sessions that are in no list
  NumberSet known_;               // codes of all prefixes that were ever computed
  NumberSet asked_;               // of those asked for in this hour
  std::uint64_t armed_ = 0;       // the allocation that fails in the present call; 0: none
  int dying_ = -1;                // requests until the machine is off; -1: it is well
};

}  // namespace kvtrie::oracle::day
