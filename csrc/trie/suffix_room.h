// For suffix_index.h: its memory, which it takes in pieces as tokens come.
//
//     blocks    [ 512 ][ 512 ][ 512 ] ...             at addresses that stay
//     heads     [ 8192 ][ 8192 ][   16384   ][ ...    tables, each as large as all before it
//
// What comes is chained from the last table. So no chain is built anew when there are more heads: nobody waits for
// that, and a look-up goes through a chain of each table, the last table first, which has what came last.
//
// Errors: growing throws std::bad_alloc, and then nothing has changed. Threads: those of the index. Units: as named.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace kvtrie {

// At most `most` of them, numbered as they come; none goes.
template <typename Each>
class InPieces {
 public:
  explicit InPieces(std::size_t most) : most_(most) {}
  std::size_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept { return pieces_.size() * length() * sizeof(Each); }
  Each& operator[](std::size_t at) noexcept { return pieces_[at / kPiece][at % kPiece]; }
  const Each& operator[](std::size_t at) const noexcept { return pieces_[at / kPiece][at % kPiece]; }
  void add() {  // REQUIRES: fewer than `most`
    if (size_ == pieces_.size() * kPiece) pieces_.push_back(std::make_unique<Each[]>(length()));
    ++size_;
  }

 private:
  static constexpr std::size_t kPiece = 512;
  std::size_t length() const noexcept { return std::min(kPiece, most_); }

  std::size_t most_, size_ = 0;
  std::vector<std::unique_ptr<Each[]>> pieces_;
};

// The first places of chains, 0 for none: at most `most` of them.
class ChainHeads {
 public:
  explicit ChainHeads(std::size_t most) : most_(most) {}
  std::size_t size() const noexcept { return size_; }
  std::size_t tables() const noexcept { return tables_.size(); }
  std::size_t begin_of(std::size_t table) const noexcept { return table == 0 ? 0 : kFirst << (table - 1); }
  std::size_t size_of(std::size_t table) const noexcept { return tables_[table].size(); }
  std::size_t table_of(std::size_t at) const noexcept { return static_cast<std::size_t>(std::bit_width(at / kFirst)); }
  std::uint32_t& operator[](std::size_t at) noexcept { return tables_[table_of(at)][at - begin_of(table_of(at))]; }
  std::uint32_t operator[](std::size_t at) const noexcept { return tables_[table_of(at)][at - begin_of(table_of(at))]; }
  void grow() {  // REQUIRES: fewer than `most`
    const std::size_t wanted = tables_.empty() ? kFirst : size_;
    tables_.emplace_back(std::min(wanted, most_ - size_));
    size_ += tables_.back().size();
  }

 private:
  static constexpr std::size_t kFirst = 8192;

  std::size_t most_, size_ = 0;
  std::vector<std::vector<std::uint32_t>> tables_;
};

}  // namespace kvtrie
