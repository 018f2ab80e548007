// The same text in the tokens that the tree knows it by.
//
// Concept. A tokenizer cuts a text in one way, a model that wrote it may have cut it in another: what was sampled as
// "lo|wer" comes back as "low|er" once it is a part of the next prompt's text. By tokens that is another prompt, and
// all that follows would be computed again. So the text is looked for, byte by byte, whatever its tokens are:
//
//     known     [ 1 question: ][ lo|wer ]<end>             sampled, and computed
//     prompt    [ 1 question: ][ low|er ]<end>[ 2 and? ]   as the tokenizer has it
//     result    [ 1 question: ][ lo|wer ]<end>[ 2 and? ]   known up to the end of the answer; then as the tokenizer has
//                                        ^ a border of both
//
// The tokens change over only at a border of both spellings, so that no token of the rest is cut in a way that the
// tokenizer would not have chosen, and never within a token. Of several known spellings the one that leads furthest is
// taken, then the one used last. The spelling of a token decides, so a caller that must tell two tokens of one spelling
// apart (a special token, and the same letters written by somebody) gives them different bytes (token_texts.h).
//
// Nothing is changed. Cost: O(bytes) for each node on a path that spells the text's beginning, each visited once, and
// at a node with many children O(longest token) look-ups. Threads: those of the trie. Units: tokens; bytes of text.
#pragma once

#include <cstdint>
#include <span>

#include "trie/token_texts.h"
#include "trie/trie.h"

namespace kvtrie {

struct TextMatch {
  Tokens tokens;           // the whole text
  std::int32_t known = 0;  // of them, those that were taken from the tree
};

// `root` may be null: nothing is known. `tokens` that spell nothing end the search: what follows stays as it is.
TextMatch match_text(const Trie& trie, const Node* root, std::span<const Token> tokens, const TokenTexts& texts);

}  // namespace kvtrie
