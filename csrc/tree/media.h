// Token ids for what is no text: images, audio clips.
//
// An item is named by the digest of its content and takes `count` positions. All of them carry one negative id, and the
// same content gets the same id in the whole process; so equal prompts match, different images never do, however many
// placeholder tokens they share. An id stands for (digest, count): an item that takes another number of positions is
// another item, and a match cannot end inside one without being noticed.
//
// Groups of tokens that go as one (`atomic`) are kept in the tree in the same way: a group's key is the id of its
// tokens. So two prompts that diverge inside a group share nothing of it: its K and V depend on all of it.
//
// Threads: any. Ids are given out from the most negative numbers upwards, so that a stray -1 stands for nothing, and
// live as long as the process; what outlives it keeps digests.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/snapshot_format.h"
#include "tree/atomic_spans.h"
#include "trie/edge.h"

namespace kvtrie {

// Throws kArgument for an empty digest or a count outside 1 .. 2^31 - 1.
Token media_id(std::string_view digest, std::int32_t count);

struct MediaItem {
  std::string digest;      // of a group: its tokens
  std::int32_t count = 0;  // 0: no item has this id
  bool group = false;
};
MediaItem media_item(Token id);
std::int32_t media_count(Token id);  // positions of the item; 0: no item has this id

// The keys by which the tree knows tokens: groups, which are the spans that are no media item, by their ids.
Tokens keys_of(std::span<const Token> tokens, const AtomicSpans& groups);
// Back again. Ids of media items stay.
Tokens tokens_of(std::span<const Token> keys);

// Ids are of one process. Keys that leave it carry the digests they stand for; keys that come in get the ids of this
// one.
std::vector<SnapshotMedia> media_of(std::span<const Token> keys);  // one for each different id, ascending
// False: there is a group with media inside, which has no name outside this process.
bool is_portable(std::span<const SnapshotMedia> media);
Tokens keys_here(std::span<const Token> keys, std::span<const SnapshotMedia> media);

// Whether there are media items among the tokens. Throws kArgument for a negative token that stands for none, naming
// its index.
bool check_tokens(std::span<const Token> tokens, std::string_view where);

}  // namespace kvtrie
