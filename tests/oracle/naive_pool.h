// The cell pool written for clarity: one entry per cell, every question answered by counting.
//
// A cell's *content* is a number that no other cell ever had; a list is the contents it must find, in order. So a cell
// that is claimed twice, freed too early or relabelled wrongly shows as a foreign number, and it is known whose.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/cell_span.h"

namespace kvtrie::oracle {

struct NaiveList {
  bool counted = true;
  std::int32_t position = 0;  // of the first content
  std::vector<std::uint64_t> contents;
  std::int32_t end() const { return position + static_cast<std::int32_t>(contents.size()); }
};

class NaivePool {
 public:
  static constexpr std::uint64_t kNothing = 0;

  explicit NaivePool(Cell cells) : content_(cells, kNothing) {}

  Cell cells() const { return static_cast<Cell>(content_.size()); }
  std::uint64_t content(Cell cell) const { return content_[cell]; }

  std::vector<NaiveList*> lists;                         // registered by the driver
  std::vector<std::pair<Cell, std::uint32_t>> reserved;  // (first cell, length), read from the pool under test

  // Holders of each content: how many counted lists name it.
  std::uint32_t holders(std::uint64_t content) const {
    std::uint32_t count = 0;
    for (const NaiveList* list : lists) {
      if (!list->counted) continue;
      count += static_cast<std::uint32_t>(std::count(list->contents.begin(), list->contents.end(), content));
    }
    return count;
  }

  // Frees every cell whose content nobody holds any more; returns those cells.
  std::set<Cell> collect() {
    std::set<std::uint64_t> held;
    for (const NaiveList* list : lists) {
      if (list->counted) held.insert(list->contents.begin(), list->contents.end());
    }
    std::set<Cell> freed;
    for (Cell cell = 0; cell < cells(); ++cell) {
      if (content_[cell] == kNothing || held.count(content_[cell]) != 0) continue;
      content_[cell] = kNothing;
      freed.insert(cell);
    }
    return freed;
  }

  std::uint32_t free_cells() const {
    return static_cast<std::uint32_t>(std::count(content_.begin(), content_.end(), kNothing));
  }

  // The runs that the documented policy takes. `own` is the claimer's reservation; REQUIRES: count <= free_cells().
  std::vector<std::pair<Cell, std::uint32_t>> plan(std::uint32_t count, Cell after, std::pair<Cell, std::uint32_t> own,
                                                   std::uint32_t ahead) const {
    if (own.second >= count && own.first == after) return {{after, count}};
    std::vector<bool> open(content_.size());
    for (Cell cell = 0; cell < cells(); ++cell) open[cell] = content_[cell] == kNothing;
    const std::vector<bool> all = open;
    for (const auto& [first, length] : reserved) {
      if (std::pair(first, length) == own) continue;
      for (Cell cell = first; cell < first + length; ++cell) open[cell] = false;
    }
    if (count > std::count(open.begin(), open.end(), true))
      return {};  // reservations go, in an order of the pool's own
    return take(open, count, after, ahead);
  }

  // Gives fresh contents to the cells of `spans`, which must be free, and returns them in order.
  std::vector<std::uint64_t> write(const CellSpans& spans, bool& were_free) {
    std::vector<std::uint64_t> contents;
    for (const CellSpan& span : spans) {
      for (Cell cell = span.cell; cell < span.end_cell(); ++cell) {
        were_free = were_free && content_[cell] == kNothing;
        content_[cell] = ++last_content_;
        contents.push_back(last_content_);
      }
    }
    return contents;
  }

  // What the store does with a move: copies contents, in an order that keeps overlapping ranges whole.
  void move(Cell from, Cell to, std::uint32_t length) {
    const std::vector<std::uint64_t> moving(content_.begin() + from, content_.begin() + from + length);
    std::copy(moving.begin(), moving.end(), content_.begin() + to);
  }
  // After the moves of a compaction only the first `held` cells hold anything.
  void forget_from(Cell held) { std::fill(content_.begin() + held, content_.end(), kNothing); }

 private:
  static std::vector<std::pair<Cell, std::uint32_t>> runs_of(const std::vector<bool>& open) {
    std::vector<std::pair<Cell, std::uint32_t>> runs;
    for (Cell cell = 0; cell < open.size(); ++cell) {
      if (!open[cell]) continue;
      if (!runs.empty() && runs.back().first + runs.back().second == cell) {
        ++runs.back().second;
      } else {
        runs.emplace_back(cell, 1);
      }
    }
    return runs;
  }

  static std::vector<std::pair<Cell, std::uint32_t>> take(std::vector<bool> open, std::uint32_t count, Cell after,
                                                          std::uint32_t ahead) {
    std::vector<std::pair<Cell, std::uint32_t>> taken;
    const auto use = [&](Cell first, std::uint32_t length) {
      taken.emplace_back(first, length);
      for (Cell cell = first; cell < first + length; ++cell) open[cell] = false;
      count -= length;
    };
    for (const auto& [first, length] : runs_of(open)) {
      if (after != 0 && first == after) {
        use(first, std::min(length, count));
        break;
      }
    }
    while (count > 0) {
      const auto runs = runs_of(open);
      const auto smallest = [&](std::uint64_t length) {
        auto best = runs.end();
        for (auto run = runs.begin(); run != runs.end(); ++run) {
          if (run->second >= length && (best == runs.end() || run->second < best->second)) best = run;
        }
        return best;
      };
      auto run = smallest(std::uint64_t{count} + ahead);
      if (run == runs.end()) run = smallest(count);
      if (run == runs.end()) {
        run = runs.begin();
        for (auto each = runs.begin(); each != runs.end(); ++each) {
          if (each->second >= run->second) run = each;  // the last of the longest
        }
      }
      use(run->first, std::min(run->second, count));
    }
    return taken;
  }

  std::vector<std::uint64_t> content_;
  std::uint64_t last_content_ = kNothing;
};

}  // namespace kvtrie::oracle
