// The common part of sending and receiving, and the known state of the store.
#include "exchange/exchange.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace kvtrie {
namespace {

constexpr std::size_t kKnownKeys = 1 << 16;  // about 2 MB; beyond that all are forgotten, and sent again at worst
constexpr std::size_t kPendingPaths = 1024;

// 64 bits of the digest that a key ends with. Two keys that agree in them: one is not sent.
std::uint64_t short_name(const std::string& key) {
  std::uint64_t name = 0;
  const char* const end = key.data() + key.size();
  std::from_chars(end - std::min<std::size_t>(16, key.size()), end, name, 16);
  return name ^ static_cast<std::uint64_t>(static_cast<unsigned char>(key[key.size() > 10 ? 9 : 0]));
}

}  // namespace

Exchange::Exchange(const ExchangedTree& of, ExchangeOptions options, std::function<std::shared_ptr<void>()> keep)
    : of_(of),
      options_(std::move(options)),
      keep_(std::move(keep)),
      tier_(std::make_shared<SharedTier>(options_.store, options_.shared)),
      room_(std::make_shared<ByteBudget>(options_.room)) {}

// Twice what one block and one point take: bytes that lie in files pass through it, too.
std::uint64_t Exchange::room_for(const CacheTable& caches, std::uint64_t host_bytes) {
  const std::uint64_t bytes = kSharedBlock * caches.bytes_per_token() + point_bytes(caches);
  return std::min(2 * bytes, host_bytes / 4);
}

std::uint64_t Exchange::point_bytes(const CacheTable& caches) {
  std::uint64_t bytes = 0;
  for (const std::size_t i : caches.windowed) {
    const Visibility& sees = caches.attention[i]->visibility();
    const std::int32_t most =
        sees.window > 0 && sees.chunk > 0 ? std::min(sees.window, sees.chunk) : std::max(sees.window, sees.chunk);
    bytes += static_cast<std::uint64_t>(most) * caches.attention[i]->shape().bytes_per_cell();
  }
  const auto longest = static_cast<std::int32_t>(caches.longest);
  for (const auto& cache : caches.states) bytes += cache->units_at(longest) * cache->bytes_per_unit();
  return bytes;
}

void Exchange::offer(const Node* node) {
  of_.gate.mutex.assert_held();  // by the caller
  if (node->is_root() || !may_share(node->name_space())) return;
  Offer path{node->name_space(), path_tokens(node), {}};
  path.media = media_of(path.tokens);
  if (!is_portable(path.media)) return;
  if (queue_.pending_jobs() >= kPendingPaths) return count_unsent();
  const std::uint64_t bytes = path.tokens.size() * sizeof(Token);
  // The job keeps the cache: its last reference may go while the store is in a call of it.
  queue_.add(bytes, [this, kept = keep_(), path = std::move(path)] { send(path); });
}

bool Exchange::all_sent() {
  const MutexLock lock(mutex_);
  return std::exchange(unsent_told_, totals_.unsent) == totals_.unsent;
}

SharedScope Exchange::scope(const std::string& name_space) const {
  return {options_.fingerprint, name_space, of_.caches.identities, options_.keys};
}

bool Exchange::may_share(std::string_view name_space) const {
  return options_.keys == nullptr || options_.keys->has(name_space);
}

bool Exchange::is_worth_asking(const Cursor& cursor, std::size_t tokens) {
  constexpr int kCalls = 2;  // at least: what is there, and what is not or goes on behind
  if (cursor.always_load || options_.always_ask) return true;
  const std::optional<std::int64_t> least =
      of_.costs.least_to_ask(kCalls, point_bytes(of_.caches), of_.caches.bytes_per_token(), of_.gate.now);
  const bool worth = least && std::cmp_greater_equal(tokens, *least);
  const MutexLock lock(mutex_);
  totals_.least_tokens = least.value_or(-1);
  totals_.not_worth += !worth;
  return worth;
}

bool Exchange::answers(const SharedExchange& exchange, const SharedPath& path, const CallTime& time) const {
  const auto closed = [&] { return tier_->stats().state == "closed"; };
  if (closed()) return true;
  static_cast<void>(exchange.get_index(path, 0, time));
  return closed();
}

double Exchange::now() const {
  const MutexLock lock(of_.gate.mutex);
  return of_.gate.now;
}

bool Exchange::is_known(const std::string& key) const {
  const MutexLock lock(mutex_);
  return known_.count(short_name(key)) != 0;
}

void Exchange::set_known(const std::string& key, bool known) {
  const MutexLock lock(mutex_);
  if (known_.size() >= kKnownKeys) known_.clear();
  known ? static_cast<void>(known_.insert(short_name(key))) : static_cast<void>(known_.erase(short_name(key)));
}

void Exchange::count_unsent() {
  const MutexLock lock(mutex_);
  ++totals_.unsent;
}

StoreStats Exchange::stats() const {
  StoreStats stats;
  {
    const MutexLock lock(mutex_);
    stats = totals_;
  }
  stats.tier = tier_->stats();
  stats.pending = queue_.pending_jobs();
  return stats;
}

}  // namespace kvtrie
