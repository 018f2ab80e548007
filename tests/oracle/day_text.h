// The texts of a simulated day: conversations that know the code of each of their prefixes, and what prompts are made
// of.
//
// System prompts and documents are the same for all tenants, so that a namespace that is forgotten anywhere is found
// out; some have images or groups of tokens that go as one.
//
// Threads: each world has its own. Units: tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "day_numbers.h"
#include "tree/media.h"
#include "trie/edge.h"

namespace kvtrie::oracle::day {

using Tokens = std::vector<Token>;
using Spans = std::vector<std::pair<std::int32_t, std::int32_t>>;  // [begin, end), ascending, disjoint

struct Piece {
  Tokens tokens;
  Spans spans;         // of media and groups
  bool group = false;  // the spans are groups
};

// A list of tokens whose prefixes have codes: those of a model and a namespace (kv_code.h).
class Text {
 public:
  Text() = default;
  explicit Text(std::uint64_t seed) : seed_(seed) {}

  const Tokens& tokens() const { return tokens_; }
  const std::vector<std::uint64_t>& hashes() const { return hashes_; }  // hashes()[p]: of tokens [0, p]
  const Spans& spans() const { return spans_; }
  const Spans& groups() const { return groups_; }
  std::int32_t length() const { return static_cast<std::int32_t>(tokens_.size()); }

  void append(std::span<const Token> tokens) {
    for (const Token token : tokens) {
      const std::uint64_t before = hashes_.empty() ? seed_ : hashes_.back();
      tokens_.push_back(token);
      hashes_.push_back(mix(before, static_cast<std::uint64_t>(token) + 1));
    }
  }
  void append(const Piece& piece) {
    for (const auto& [begin, end] : piece.spans) {
      spans_.emplace_back(begin + length(), end + length());
      if (piece.group) groups_.push_back(spans_.back());
    }
    append(std::span<const Token>(piece.tokens));
  }
  // To `length`, or to where the span begins that it is inside of.
  void cut(std::int32_t length) {
    const std::int32_t at = whole(length);
    tokens_.resize(static_cast<std::size_t>(at));
    hashes_.resize(static_cast<std::size_t>(at));
    const auto beyond = [&](const auto& span) { return span.second > at; };
    std::erase_if(spans_, beyond);
    std::erase_if(groups_, beyond);
  }
  // As a context shift leaves it: the rows of what stays are those that they were.
  void drop(std::int32_t begin, std::int32_t end) {
    tokens_.erase(tokens_.begin() + begin, tokens_.begin() + end);
    hashes_.erase(hashes_.begin() + begin, hashes_.begin() + end);
  }
  std::int32_t whole(std::int32_t length) const {
    for (const auto& [begin, end] : spans_) {
      if (length > begin && length < end) return begin;
    }
    return std::min(length, this->length());
  }
  // The same tokens under another model.
  void rename(std::uint64_t seed) {
    if (seed == seed_) return;
    seed_ = seed;
    const Tokens tokens = std::exchange(tokens_, {});
    hashes_.clear();
    append(std::span<const Token>(tokens));
  }

 private:
  std::uint64_t seed_ = 0;
  Tokens tokens_;
  std::vector<std::uint64_t> hashes_;
  Spans spans_, groups_;
};

class Library {
 public:
  explicit Library(std::uint64_t seed) : random_(seed) {
    for (int i = 0; i < 40; ++i) systems_.push_back(piece(random_.between(16, 260), 0));
    for (int i = 0; i < 160; ++i)
      documents_.push_back(piece(length_of_document(), i % 5 == 0 ? 1 : i % 7 == 0 ? 2 : 0));
  }

  const Piece& system(std::size_t tenant, Random& random) const {
    return systems_[(tenant * 7 + by_system_.draw(random)) % systems_.size()];
  }
  const Piece& document(std::size_t tenant, Random& random) const {
    return documents_[(tenant % 4 * 11 + by_document_.draw(random)) % documents_.size()];
  }
  // Words that nobody said before, but by chance.
  static Piece words(Random& random, std::int32_t count) {
    Piece piece;
    for (std::int32_t i = 0; i < count; ++i) piece.tokens.push_back(static_cast<Token>(random.below(50000)));
    return piece;
  }
  static Piece image(Random& random) {
    Piece piece;
    const auto number = static_cast<int>(random.below(12));
    const std::int32_t count = 4 + number;
    piece.tokens.assign(static_cast<std::size_t>(count), media_id(cat("image ", number), count));
    piece.spans.emplace_back(0, count);
    return piece;
  }

 private:
  std::int32_t length_of_document() {
    return random_.chance(0.06) ? random_.between(600, 1500) : random_.between(40, 380);
  }
  // kind 1: with images; 2: with a group of tokens that see each other.
  Piece piece(std::int32_t length, int kind) {
    Piece made = words(random_, length);
    if (kind == 1) {
      const Piece picture = image(random_);
      const auto at = static_cast<std::ptrdiff_t>(random_.below(made.tokens.size()));
      made.tokens.insert(made.tokens.begin() + at, picture.tokens.begin(), picture.tokens.end());
      made.spans.emplace_back(at, at + picture.spans[0].second);
    } else if (kind == 2) {
      made.spans.emplace_back(length / 3, length / 3 + std::max(2, length / 6));
      made.group = true;
    }
    return made;
  }

  Random random_;
  std::vector<Piece> systems_, documents_;
  Zipf by_system_{12, 1.1}, by_document_{160, 1.0};
};

}  // namespace kvtrie::oracle::day
