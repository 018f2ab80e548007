#include "tree/media.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"

namespace kvtrie {
namespace {

constexpr Token kFirst = std::numeric_limits<Token>::min() + 1;

struct MediaTable {
  mutable Mutex mutex;
  std::map<std::tuple<bool, std::string, std::int32_t>, Token> ids KVTRIE_GUARDED_BY(mutex);  // (group, digest, count)
  std::vector<MediaItem> items KVTRIE_GUARDED_BY(mutex);                                      // item of id kFirst + i
};

MediaTable& table() {
  static MediaTable table;
  return table;
}

// Null: no item has this id.
const MediaItem* find(const MediaTable& table, Token id) KVTRIE_REQUIRES(table.mutex) {
  const auto index = static_cast<std::size_t>(static_cast<std::int64_t>(id) - kFirst);
  return id >= kFirst && index < table.items.size() ? &table.items[index] : nullptr;
}

Token id_of(std::string digest, std::int32_t count, bool group) {
  MediaTable& known = table();
  const MutexLock lock(known.mutex);
  known.items.reserve(known.items.size() + 1);
  const auto next = static_cast<Token>(kFirst + static_cast<std::int64_t>(known.items.size()));
  MediaItem item{digest, count, group};
  const auto [entry, fresh] = known.ids.try_emplace({group, std::move(digest), count}, next);
  if (fresh) known.items.push_back(std::move(item));
  return entry->second;
}

}  // namespace

Token media_id(std::string_view digest, std::int32_t count) {
  require(!digest.empty(), "media", "digest: got nothing, allowed 1 byte or more");
  require(count >= 1, "media", "count: got ", count, ", allowed 1 or more");
  return id_of(std::string(digest), count, /*group=*/false);
}

MediaItem media_item(Token id) {
  MediaTable& known = table();
  const MutexLock lock(known.mutex);
  const MediaItem* item = find(known, id);
  return item == nullptr ? MediaItem{} : *item;
}

std::int32_t media_count(Token id) {
  MediaTable& known = table();
  const MutexLock lock(known.mutex);
  const MediaItem* item = find(known, id);
  return item == nullptr ? 0 : item->count;
}

Tokens keys_of(std::span<const Token> tokens, const AtomicSpans& groups) {
  Tokens keys(tokens.begin(), tokens.end());
  for (const auto& [begin, end] : groups.spans()) {
    const std::span<const Token> group =
        tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    const bool item = group.front() < 0 && media_count(group.front()) == end - begin;
    if (item) continue;
    std::string bytes(reinterpret_cast<const char*>(group.data()), group.size_bytes());
    std::fill(keys.begin() + begin, keys.begin() + end, id_of(std::move(bytes), end - begin, /*group=*/true));
  }
  return keys;
}

Tokens tokens_of(std::span<const Token> keys) {
  Tokens tokens(keys.begin(), keys.end());
  for (std::size_t i = 0; i < keys.size();) {
    const MediaItem item = keys[i] < 0 ? media_item(keys[i]) : MediaItem{{}, 1, false};
    const auto count = std::min(keys.size() - i, static_cast<std::size_t>(std::max(item.count, 1)));
    if (item.group) std::memcpy(tokens.data() + i, item.digest.data(), count * sizeof(Token));
    i += count;
  }
  return tokens;
}

std::vector<SnapshotMedia> media_of(std::span<const Token> keys) {
  std::set<Token> ids;
  for (const Token key : keys) {
    if (key < 0) ids.insert(key);
  }
  std::vector<SnapshotMedia> media;
  for (const Token id : ids) {
    MediaItem item = media_item(id);
    media.push_back({id, item.count, item.group, std::move(item.digest)});
  }
  return media;
}

bool is_portable(std::span<const SnapshotMedia> media) {
  return std::none_of(media.begin(), media.end(), [](const SnapshotMedia& item) {
    if (!item.group) return false;
    Tokens tokens(static_cast<std::size_t>(item.count));
    std::memcpy(tokens.data(), item.digest.data(), tokens.size() * sizeof(Token));
    return std::any_of(tokens.begin(), tokens.end(), [](Token token) { return token < 0; });
  });
}

Tokens keys_here(std::span<const Token> keys, std::span<const SnapshotMedia> media) {
  std::map<Token, Token> ids;
  for (const SnapshotMedia& item : media) ids[item.id] = id_of(item.digest, item.count, item.group);
  Tokens here(keys.begin(), keys.end());
  for (Token& key : here) {
    if (key < 0) key = ids.at(key);
  }
  return here;
}

namespace {

// A long prompt is read here before it is compared, so this has to run at the speed of memory: several chains of ORs,
// whose sign is that of any token. (A minimum, without SSE4.1, takes ten times as long.)
bool any_negative(std::span<const Token> tokens) noexcept {
  constexpr std::size_t kLanes = 16;
  Token lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= tokens.size(); i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) lanes[j] |= tokens[i + j];
  }
  Token all = 0;
  for (const Token lane : lanes) all |= lane;
  for (; i < tokens.size(); ++i) all |= tokens[i];
  return all < 0;
}

}  // namespace

bool check_tokens(std::span<const Token> tokens, std::string_view where) {
  if (!any_negative(tokens)) return false;
  const auto unknown = [](Token token) { return token < 0 && media_count(token) == 0; };
  const auto at = std::find_if(tokens.begin(), tokens.end(), unknown);
  if (at == tokens.end()) return true;
  fail(ErrorKind::kArgument, where, "tokens[", at - tokens.begin(), "]: got ", *at, ", allowed 0 to ",
       std::numeric_limits<Token>::max(), " and the ids of media items");
}

}  // namespace kvtrie
