// Where the next prompts are likely to part, by the tokens that stood before earlier partings.
//
// Concept. A prompt *parts* from what is known at the length up to which it was seen before. In texts that are partly
// fixed, as forms, templates of chats and calls of tools, most partings lie behind the same few tokens: the name of a
// field, the header of a message. So the kLength tokens before a parting, its *context*, are counted, and in the tokens
// that a prompt adds, lengths behind such contexts count as ends of messages (message_ends.h) where the caller named
// none: a recurrent state is kept there.
//
//     known   [ fixed text | Name: | Ada Lovelace | Town: | ...        a second prompt parts behind "Name:"
//     new     [ fixed text | Name: | Grace Hopper | Town: | ...        and is kept behind it, and behind "Town:" once
//                                                                      prompts part there
//
// A context counts once kLeast prompts parted behind it, and only while at least one parting came for each kPlaces
// lengths that it was found at: words that stand everywhere are soon left alone. Of more than kMost contexts, all are
// counted half, and those go of which nothing is left.
//
// A context is that of one namespace: nobody's tokens say anything about another's. Each group of namespaces
// (trie/victim_order.h) counts its own, so that nobody makes another's be forgotten.
//
// Cost: O(tokens that a prompt adds). Threads: guarded by the prefix cache's mutex. Units: tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trie/trie.h"

namespace kvtrie {

class Partings {
 public:
  static constexpr std::int32_t kLength = 4;
  static constexpr std::uint32_t kLeast = 2, kPlaces = 64;
  static constexpr std::size_t kMost = 4096;

  // Whose prompts: a namespace and its group.
  struct Whose {
    Group group = 0;
    std::string_view name_space;
  };

  // A prompt parted at `length`, or ended there.
  void learn(const Whose& whose, std::span<const Token> prompt, std::int32_t length);
  // Lengths above `from` and below that of the prompt that lie behind contexts which count: ascending.
  std::vector<std::int32_t> find(const Whose& whose, std::span<const Token> prompt, std::int32_t from);

 private:
  struct Seen {
    std::uint32_t partings = 0, places = 0;
    bool counts() const noexcept { return partings >= kLeast && places <= kPlaces * partings; }
  };
  using Contexts = std::unordered_map<std::uint64_t, Seen>;  // by hash
  static void forget_half(Contexts& contexts);

  std::map<Group, Contexts> contexts_;
};

}  // namespace kvtrie
