#include "tree/partings.h"

#include <algorithm>
#include <functional>

namespace kvtrie {
namespace {

// Of the tokens before `length`. Two contexts of one hash only share their counts.
std::uint64_t context_before(std::uint64_t hash, std::span<const Token> prompt, std::int32_t length) noexcept {
  for (const Token token : prompt.subspan(static_cast<std::size_t>(length - Partings::kLength), Partings::kLength))
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 29);
}

std::uint64_t hash_of(std::string_view name_space) { return std::hash<std::string_view>()(name_space); }

}  // namespace

void Partings::learn(const Whose& whose, std::span<const Token> prompt, std::int32_t length) {
  if (length < kLength) return;
  Contexts& contexts = contexts_[whose.group];
  ++contexts[context_before(hash_of(whose.name_space), prompt, length)].partings;
  while (contexts.size() > kMost) forget_half(contexts);
}

void Partings::forget_half(Contexts& contexts) {
  for (auto& [hash, seen] : contexts) {
    seen.partings /= 2;
    seen.places /= 2;
  }
  std::erase_if(contexts, [](const auto& each) { return each.second.partings == 0; });
}

std::vector<std::int32_t> Partings::find(const Whose& whose, std::span<const Token> prompt, std::int32_t from) {
  std::vector<std::int32_t> found;
  const auto own = contexts_.find(whose.group);
  if (own == contexts_.end()) return found;
  const std::uint64_t seed = hash_of(whose.name_space);
  for (std::int32_t at = std::max(from + 1, kLength); at < static_cast<std::int32_t>(prompt.size()); ++at) {
    const auto seen = own->second.find(context_before(seed, prompt, at));
    if (seen == own->second.end() || !seen->second.counts()) continue;
    found.push_back(at);
    ++seen->second.places;
  }
  return found;
}

}  // namespace kvtrie
