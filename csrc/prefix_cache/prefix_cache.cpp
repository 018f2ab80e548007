#include "prefix_cache/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "plan/node_tier.h"
#include "prefix_cache/entry.h"
#include "session/reuse_search.h"
#include "tree/media.h"
#include "tree/summary.h"
#include "trie/match_text.h"

namespace kvtrie {
namespace {

PrefixCacheOptions with_files(PrefixCacheOptions options) {
  if (options.files == nullptr) options.files = real_file_system();
  return options;
}

}  // namespace

PrefixCacheState::PrefixCacheState(CacheSet set, PrefixCacheOptions settings)
    : caches(std::move(set)),
      options(with_files(std::move(settings))),
      orders{!options.disk.empty(), caches.windowed, caches.of_points},
      host(options.host_bytes > 0 ? std::make_shared<ByteBudget>(options.host_bytes) : nullptr),
      trie(orders.tiers(), options.policy, orders.others()) {
  for (const auto& cache : caches.attention) cache->set_growth(options.growth);
  require(options.max_pinned_fraction >= 0 && options.max_pinned_fraction <= 1, "prefix_cache",
          "max_pinned_fraction: got ", options.max_pinned_fraction, ", allowed 0 to 1");
  require(options.checkpoint_every >= 1, "prefix_cache", "checkpoint_every: got ", options.checkpoint_every,
          ", allowed 1 or more");
  require(options.disk_after >= 1 && options.disk_after <= Demand::kMost, "prefix_cache", "disk_after: got ",
          options.disk_after, ", allowed 1 to ", Demand::kMost);
  require(!options.ttl || *options.ttl > 0, "prefix_cache", "ttl: got ", options.ttl.value_or(0),
          ", allowed seconds above 0, or none");
  require(!options.ttl || options.clock, "prefix_cache", "ttl: got ", options.ttl.value_or(0),
          ", allowed none without a clock");
  require(options.suffix_index_tokens.value_or(0) <= SuffixIndex::kMost, "prefix_cache", "suffix_index_tokens: got ",
          options.suffix_index_tokens.value_or(0), ", allowed 0 to ", SuffixIndex::kMost);
  if (options.suffix_index_tokens.value_or(0) > 0) trie.index_suffixes(*options.suffix_index_tokens);
  capacity.set_pin_cap();
  gate.now = gate.read_clock();
  for (const auto& cache : caches.attention) node_costs.bytes_per_cell.push_back(cache->shape().bytes_per_cell());
  for (const auto& cache : caches.states) node_costs.states.push_back(cache.get());
  open_disk();
  open_store();
}

// Sending has some host memory for itself, so that it never has to evict anything.
void PrefixCacheState::open_store() {
  if (options.store == nullptr) return;
  require(!options.fingerprint.empty(), "prefix_cache",
          "fingerprint: got '', allowed the name of the weights: other processes have others");
  require(host != nullptr, "prefix_cache", "host_bytes: got 0, allowed 1 or more with a store: bytes pass through it");
  require(options.store_min_tokens >= 1, "prefix_cache", "store_min_tokens: got ", options.store_min_tokens,
          ", allowed 1 or more");
  require(options.store_deadline > 0, "prefix_cache", "store_deadline: got ", options.store_deadline,
          ", allowed seconds above 0");
  const std::uint64_t room = Exchange::room_for(caches, options.host_bytes);
  if (room < kSharedBlock * caches.bytes_per_token()) {
    log_message(LogLevel::kWarning,
                cat("prefix cache: host_bytes is ", options.host_bytes,
                    ", of which a quarter does not hold one block of ", kSharedBlock, " tokens: nothing is sent"));
  }
  ensure(host->set_cap(options.host_bytes - room), "prefix_cache", "host memory is in use at creation");
  exchange = std::make_unique<Exchange>(
      ExchangedTree{gate, caches, trie, namespaces, quotas, leases, planner, costs, host, lower, removal, imports,
                    page_in, totals},
      ExchangeOptions{options.store, options.store_options, options.fingerprint, options.keys, options.store_min_tokens,
                      options.store_deadline, options.load == LoadPolicy::kAlways, room},
      [this] { return shared_from_this(); });
  exchange->prepare_last([closing = closing] {
    const std::shared_ptr<PrefixCacheState> keep = std::exchange(*closing, nullptr);
    const Entry last(*keep, /*allow_closed=*/true);
  });
}

// In the budget of its namespace.
void PrefixCacheState::count_file(const FoundSnapshot& found) {
  std::shared_ptr<ByteBudget> own = namespaces.disk_of(found.header.name_space);
  if (own == nullptr) return;
  auto counted = std::make_shared<BudgetHold>(std::move(own));
  if (counted->reserve(found.file->bytes())) found.file->keep(std::move(counted));
}

// Part of the constructor: nobody else has the cache yet.
void PrefixCacheState::open_disk() KVTRIE_NO_THREAD_SAFETY_ANALYSIS {
  if (options.disk.empty()) return;
  require(!options.fingerprint.empty(), "prefix_cache",
          "fingerprint: got '', allowed the name of the weights: what is on a disk outlives the process");
  require(host != nullptr, "prefix_cache",
          "host_bytes: got 0, allowed 1 or more with a disk tier: bytes pass through it");
  const auto disk = DiskTier::open(
      {options.disk, options.disk_bytes, options.fingerprint, caches.identities, options.keys}, options.files);
  lower.open(disk);
  WriteBehind::Caches written{options.fingerprint, caches.identities, {}};
  for (const auto& cache : caches.attention) written.shapes.push_back(cache->shape());
  writer = &behind.open(std::move(written));
  try {
    std::vector<FoundSnapshot> found = disk->scan();
    for (const FoundSnapshot& each : found) count_file(each);
    imports.add_all(std::move(found), gate.now);
  } catch (...) {
    disk->keep_files();
    throw;
  }
}

// A state that was never closed, as when its creation fails, takes no file along.
PrefixCacheState::~PrefixCacheState() {
  if (lower.disk() != nullptr) lower.disk()->keep_files();
}

PrefixCache::PrefixCache(std::shared_ptr<PrefixCacheState> state) : state_(std::move(state)) {}

PrefixCachePtr PrefixCache::create(CacheSet caches, PrefixCacheOptions options) {
  auto state = std::make_shared<PrefixCacheState>(std::move(caches), std::move(options));
  Attachment attachment;
  for (LayerCache* cache : state->caches.all) {
    attachment.add(*cache);
    if (state->options.quotas) cache->count_owners();
  }
  PrefixCachePtr cache(new PrefixCache(std::move(state)));
  attachment.keep();
  return cache;
}

PrefixCache::~PrefixCache() {
  if (!state_->gate.home.is_here()) {
    leave_as_it_is(state_);
    return;
  }
  for (const auto& each : observers_) {
    if (const std::shared_ptr<EndObserver> observer = each.lock()) observer->forget(*this);
  }
  close();
}

void PrefixCache::add_observer(const std::shared_ptr<EndObserver>& observer) {
  const MutexLock lock(observers_mutex_);
  std::erase_if(observers_, [](const auto& each) { return each.expired(); });
  const bool known =
      std::any_of(observers_.begin(), observers_.end(), [&](const auto& each) { return each.lock() == observer; });
  if (!known) observers_.push_back(observer);
}

const std::vector<std::shared_ptr<CausalCache>>& PrefixCache::caches() const noexcept {
  return state_->caches.attention;
}

const std::vector<std::shared_ptr<PointCache>>& PrefixCache::states() const noexcept { return state_->caches.states; }

const PrefixCacheOptions& PrefixCache::options() const noexcept { return state_->options; }
std::uint32_t PrefixCache::longest() const noexcept { return state_->caches.longest; }

bool PrefixCache::closed() const noexcept {
  if (!state_->gate.home.is_here()) return true;
  const MutexLock lock(state_->gate.mutex);
  return state_->gate.closed;
}

void PrefixCache::close() noexcept {
  if (!state_->gate.home.is_here()) return;
  Entry entry(*state_, /*allow_closed=*/true);
  state_->close(entry);
}

namespace {

// Where sessions will want to resume: before the prompt's last token, and where it diverges from what is known.
std::vector<WantedPoint> points_of_prompt(std::int32_t length, const ReusePlan& report, const AtomicSpans& atomic) {
  std::vector<WantedPoint> wanted;
  const std::int32_t diverges = atomic.begin_of(report.matched);
  if (diverges > report.reusable && diverges < length - 1) wanted.push_back({diverges, PointKind::kBranch});
  if (length > 1) wanted.push_back({length - 1, PointKind::kEnd});
  return wanted;
}

}  // namespace

SessionPtr PrefixCache::begin(std::string_view name_space, std::span<const Token> tokens, const BeginOptions& options) {
  require(!tokens.empty(), "begin", "tokens: got 0, allowed at least 1");
  require(tokens.size() <= state_->caches.longest, "begin", "tokens: got ", tokens.size(), ", allowed ",
          state_->caches.longest, " (cells of the smallest cache)");
  const bool with_media = check_tokens(tokens, "begin");
  SessionPtr session(new Session(shared_from_this()));  // outlives the entry: closing it takes the mutex
  const auto length = static_cast<std::int32_t>(tokens.size());
  session->at_.atomic = AtomicSpans(options.atomic, length);
  if (with_media) session->at_.atomic.add_media(tokens, 0);
  session->at_.message_ends = MessageEnds(options.message_ends, length,
                                          Checkpointer::least_between_message_ends(state_->options.checkpoint_every));
  session->at_.tail = keys_of(tokens, session->at_.atomic);
  Entry entry(*state_);
  state_->times.settle();
  session->at_.use = options.use;
  session->at_.publish = options.publish;
  session->at_.always_load = options.always_load;
  state_->cursors.open(session->at_, name_space, state_->namespaces.number_of(name_space));
  if (options.use) {
    const std::int32_t limit = options.reuse_all ? length : length - 1;
    session->report_ = state_->advance(session->at_, limit, entry);
  } else {
    session->report_.matched = state_->planner.find_path(session->at_.node, session->at_.tail).matched;
    if (session->report_.matched > 0) session->report_.reason = reason_for(ReasonCode::kNotUsed);
  }
  if (state_->caches.has_points())
    session->at_.wanted = points_of_prompt(length, session->report_, session->at_.atomic);
  if (!state_->caches.states.empty() && options.publish) state_->add_partings(session->at_, tokens, session->report_);
  ++state_->totals.begins;
  state_->totals.hits += session->report_.reusable > 0;
  state_->totals.matched_tokens += static_cast<std::uint64_t>(session->report_.matched);
  state_->totals.reused_tokens += static_cast<std::uint64_t>(session->report_.reusable);
  if (session->report_.reason.code == ReasonCode::kRecompute) {
    const std::int32_t known = std::min(session->report_.matched, options.reuse_all ? length : length - 1);
    state_->totals.recomputed_instead += static_cast<std::uint64_t>(known - session->report_.reusable);
  }
  return session;
}

void PrefixCacheState::add_partings(Cursor& cursor, std::span<const Token> prompt, const ReusePlan& report) {
  if (!options.find_partings) return;
  const auto length = static_cast<std::int32_t>(prompt.size());
  const std::int32_t known = std::min(report.matched, length - 1);
  const Partings::Whose whose{cursor.node->group(), cursor.name_space};
  const std::vector<std::int32_t> found = partings.find(whose, prompt, known);
  const std::int32_t least = Checkpointer::least_between_message_ends(options.checkpoint_every);
  if (!found.empty()) cursor.message_ends.merge(found, length, least);
  if (known > 0) partings.learn(whose, prompt, known);
}

StepPtr PrefixCache::batch(std::span<const SessionPtr> sessions, std::uint32_t chunk,
                           std::span<const std::span<const Token>> drafts) {
  require(chunk > 0, "batch", "chunk: got 0, allowed 1 or more tokens");
  require(!sessions.empty(), "batch", "sessions: got none, allowed at least 1");
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    require(sessions[i] != nullptr && sessions[i]->cache_.get() == this, "batch", "sessions[", i,
            "] belongs to another cache");
    require(std::find(sessions.begin(), sessions.begin() + static_cast<std::ptrdiff_t>(i), sessions[i]) ==
                sessions.begin() + static_cast<std::ptrdiff_t>(i),
            "batch", "sessions[", i, "] is in the list twice");
  }
  require(drafts.empty() || drafts.size() == sessions.size(), "batch", "drafts: got ", drafts.size(), ", allowed ",
          sessions.size(), ", one for each session");
  std::vector<SessionCall> calls;
  calls.reserve(sessions.size());
  for (const SessionPtr& session : sessions) calls.emplace_back(*session);
  StepPtr step;
  {
    Entry entry(*state_);
    step = state_->make_step(shared_from_this(), sessions, chunk, /*adopt=*/true, entry, drafts);
  }
  state_->begin_timing(*step);
  return step;
}

Tokens PrefixCache::keys(std::span<const Token> tokens,
                         const std::vector<std::pair<std::int32_t, std::int32_t>>& atomic) {
  return keys_of(tokens, AtomicSpans(atomic, static_cast<std::int32_t>(tokens.size())));
}

ReusePlan PrefixCache::plan(std::string_view name_space, std::span<const Token> tokens) const {
  require(!tokens.empty(), "plan", "tokens: got 0, allowed at least 1");
  AtomicSpans atomic;
  if (check_tokens(tokens, "plan")) atomic.add_media(tokens, 0);
  Entry entry(*state_);
  return state_->plan(name_space, tokens, atomic);
}

ReusePlan PrefixCacheState::plan(std::string_view name_space, std::span<const Token> tokens,
                                 const AtomicSpans& atomic) {
  times.settle();
  Node* root = trie.find_root(name_space);
  if (root == nullptr) return {};
  ReuseSearch search(planner, device_budget, {root, tokens, 0, atomic}, static_cast<std::int32_t>(tokens.size()) - 1);
  search.look();
  ReusePlan plan = search.report();
  plan.bytes_moved = search.fetch().bytes;
  if (plan.reusable > 0) plan.tier = tier_of(search.fetch());
  return plan;
}

Tokens PrefixCache::match_text(std::string_view name_space, std::span<const Token> tokens,
                               const TokenTexts& texts) const {
  require(!tokens.empty(), "match_text", "tokens: got 0, allowed at least 1");
  check_tokens(tokens, "match_text");
  Entry entry(*state_);
  return kvtrie::match_text(state_->trie, state_->trie.find_root(name_space), tokens, texts).tokens;
}

Explanation PrefixCache::explain(std::string_view name_space, std::span<const Token> tokens) const {
  require(!tokens.empty(), "explain", "tokens: got 0, allowed at least 1");
  AtomicSpans atomic;
  if (check_tokens(tokens, "explain")) atomic.add_media(tokens, 0);
  Entry entry(*state_);
  Explanation explanation;
  explanation.length = static_cast<std::int32_t>(tokens.size());
  explanation.plan = state_->plan(name_space, tokens, atomic);
  Node* root = state_->trie.find_root(name_space);
  const Path path = root == nullptr ? Path{} : state_->planner.find_path(root, tokens);
  explain_match(root, path, tokens, explanation);
  explanation.caches = reach_of_each(state_->caches, state_->planner, path, path.matched);
  add_seconds(state_->costs, explanation);
  return explanation;
}

ReusePlan PrefixCacheState::advance(Cursor& cursor, std::int32_t limit, Call& call) {
  return exchange != nullptr ? exchange->advance(cursor, limit, call) : page_in.advance(cursor, limit, call);
}

const SuffixIndex& PrefixCacheState::suffixes() {
  if (trie.suffixes() == nullptr) {
    if (options.suffix_index_tokens == std::size_t{0}) {
      fail(ErrorKind::kNotSupported, "session.continuation",
           "suffix: got true, allowed false in a cache with suffix_index_tokens of 0");
    }
    trie.index_suffixes(options.suffix_index_tokens.value_or(PrefixCacheOptions::kSuffixIndexTokens));
  }
  if (trie.reads_suffixes()) trie.read_suffixes(kSuffixPiece);
  return *trie.suffixes();
}

std::int32_t PrefixCache::restore(std::string_view name_space, std::span<const Token> tokens) {
  BeginOptions options;
  options.reuse_all = true;
  options.publish = false;
  options.always_load = true;
  return begin(name_space, tokens, options)->reused();
}

PrefixCacheStats PrefixCache::stats() const {
  Entry entry(*state_, true);
  state_->times.settle();
  const std::uint64_t disk_tokens = state_->disk_tokens(entry);
  return state_->stats(disk_tokens);
}

std::vector<NodeInfo> PrefixCache::nodes() const {
  Entry entry(*state_);
  return node_infos(state_->trie, state_->caches, state_->sessions, state_->gate.now);
}

std::vector<Fingerprint> PrefixCache::summary(std::size_t most) const {
  Entry entry(*state_);
  Pieces pieces(entry);
  Summary summary(most);
  const auto look = [&](const Node& node) { summary.look(node); };
  const auto take = [&](const Node& node) { summary.take(node); };
  pieces.walk([&](NodeWalk& walk, std::size_t count)
                  KVTRIE_REQUIRES(state_->gate.mutex) { state_->trie.visit_some(walk, count, look); });
  state_->sessions.visit_nodes([&](const Node* node) { summary.take_live(node); });
  pieces.walk([&](NodeWalk& walk, std::size_t count) KVTRIE_REQUIRES(state_->gate.mutex) {
    state_->trie.visit_some(walk, count, take);
    summary.end_piece();
  });
  return summary.finish();
}

std::vector<std::string> PrefixCache::check() const {
  Entry entry(*state_, true);
  return state_->check();
}

}  // namespace kvtrie
