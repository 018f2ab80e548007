// Token ids for what is no text: images, audio clips.
//
// An item is named by the digest of its content and takes `count` positions. All of them carry one negative id, and the
// same content gets the same id in the whole process; so equal prompts match, different images never do, however many
// placeholder tokens they share. An id stands for (digest, count): an item that takes another number of positions is
// another item, and a match cannot end inside one without being noticed.
//
// Threads: any. Ids are given out in order, from -1 downwards, and live as long as the process; what outlives it keeps
// digests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trie/edge.h"

namespace kvtrie {

// Throws kArgument for an empty digest or a count outside 1 .. 2^31 - 1.
Token media_id(std::string_view digest, std::int32_t count);

struct MediaItem {
  std::string digest;
  std::int32_t count = 0;  // 0: no item has this id
};
MediaItem media_item(Token id);
std::int32_t media_count(Token id);  // positions of the item; 0: no item has this id

}  // namespace kvtrie
