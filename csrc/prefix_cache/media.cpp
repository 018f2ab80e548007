#include "prefix_cache/media.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"

namespace kvtrie {
namespace {

struct MediaTable {
  std::mutex mutex;
  std::map<std::pair<std::string, std::int32_t>, Token> ids;
  std::vector<MediaItem> items;  // item of id -1 - i
};

MediaTable& table() {
  static MediaTable table;
  return table;
}

// REQUIRES: the mutex is held. Null: no item has this id.
const MediaItem* find(const MediaTable& table, Token id) {
  const auto index = static_cast<std::size_t>(-1 - static_cast<std::int64_t>(id));
  return id < 0 && index < table.items.size() ? &table.items[index] : nullptr;
}

}  // namespace

Token media_id(std::string_view digest, std::int32_t count) {
  require(!digest.empty(), "media", "digest: got nothing, allowed 1 byte or more");
  require(count >= 1, "media", "count: got ", count, ", allowed 1 or more");
  MediaTable& known = table();
  const std::lock_guard lock(known.mutex);
  known.items.reserve(known.items.size() + 1);
  const auto next = static_cast<Token>(-1 - static_cast<std::int64_t>(known.items.size()));
  const auto [entry, fresh] = known.ids.try_emplace({std::string(digest), count}, next);
  if (fresh) known.items.push_back({std::string(digest), count});
  return entry->second;
}

MediaItem media_item(Token id) {
  MediaTable& known = table();
  const std::lock_guard lock(known.mutex);
  const MediaItem* item = find(known, id);
  return item == nullptr ? MediaItem{} : *item;
}

std::int32_t media_count(Token id) {
  MediaTable& known = table();
  const std::lock_guard lock(known.mutex);
  const MediaItem* item = find(known, id);
  return item == nullptr ? 0 : item->count;
}

}  // namespace kvtrie
