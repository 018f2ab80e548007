// Random operations on a CellPool beside its naive twin, with check() and a full comparison after each.
#pragma once

#include <array>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cache/cell_pool.h"
#include "cache/kv_store.h"
#include "naive_pool.h"
#include "random.h"

namespace kvtrie::oracle {

// One list of the pool with its twin. A borrower (uncounted) dies before its lender.
struct PoolEntry {
  SpanList list;
  NaiveList twin;
  Reservation reservation;
  const PoolEntry* lender = nullptr;
};

class PoolDriver {
 public:
  PoolDriver(Random random, Cell cells) : random_(std::move(random)), pool_(CellPool::create(cells)), twin_(cells) {
    pool_->on_free = [this](Cell begin, std::uint32_t length) {
      for (Cell cell = begin; cell < begin + length; ++cell) {
        if (!freed_.insert(cell).second) hook_fault_ = "a cell became free twice";
      }
    };
  }

  bool used_up() const noexcept { return random_.used_up(); }

  // One random operation and every comparison; empty when all agree.
  std::string step() {
    freed_.clear();
    hook_fault_.clear();
    const std::uint32_t choice = below(100);
    std::string fault;
    if (twin_.free_cells() < twin_.cells() / 2 && below(3) == 0) {
      destroy();  // keeps the pool from staying full, where nothing but refusals happens
    } else if (choice < 30) {
      fault = claim();
    } else if (choice < 40) {
      share();
    } else if (choice < 46) {
      borrow();
    } else if (choice < 54) {
      split();
    } else if (choice < 62) {
      join();
    } else if (choice < 72) {
      truncate();
    } else if (choice < 84) {
      destroy();
    } else if (choice < 88) {
      if (PoolEntry* entry = any()) pool_->release(entry->reservation);
    } else if (choice < 91) {
      if (PoolEntry* entry = any()) shift(*entry);
    } else if (choice < 94) {
      fault = refuse();
    } else if (choice < 97) {
      move_around();
    } else {
      compact();
    }
    return fault.empty() ? compare() : fault;
  }

 private:
  std::uint32_t below(std::uint32_t limit) { return limit == 0 ? 0 : static_cast<std::uint32_t>(random_() % limit); }
  PoolEntry* any() {
    return entries_.empty() ? nullptr : entries_[below(static_cast<std::uint32_t>(entries_.size()))].get();
  }
  PoolEntry* any_counted() {
    for (int tries = 0; tries < 4; ++tries) {
      PoolEntry* entry = any();
      if (entry != nullptr && entry->twin.counted) return entry;
    }
    return nullptr;
  }
  PoolEntry& add(SpanList list, NaiveList twin, const PoolEntry* lender) {
    entries_.push_back(std::make_unique<PoolEntry>());
    PoolEntry& entry = *entries_.back();
    entry.list = std::move(list);
    entry.twin = std::move(twin);
    entry.lender = lender;
    twin_.lists.push_back(&entry.twin);
    return entry;
  }
  std::int32_t somewhere(const NaiveList& twin) {
    return twin.position + static_cast<std::int32_t>(below(static_cast<std::uint32_t>(twin.contents.size()) + 1));
  }

  void read_reservations() {
    twin_.reserved.clear();
    for (const auto& entry : entries_) {
      if (entry->reservation.length() > 0)
        twin_.reserved.emplace_back(entry->reservation.cell(), entry->reservation.length());
    }
  }

  // A new list, or more cells for one that exists.
  std::string claim() {
    PoolEntry* entry = below(3) == 0 ? nullptr : any_counted();
    if (entry == nullptr || entry->list.empty()) {
      entry = &add(SpanList(*pool_, true), NaiveList{true, static_cast<std::int32_t>(below(50)), {}}, nullptr);
    }
    static constexpr std::array<std::uint32_t, 4> kAhead{0, 1, 4, 16};
    const std::uint32_t ahead = kAhead[below(4)];
    const std::uint32_t count = 1 + below(below(4) == 0 ? twin_.free_cells() + 2 : 6);
    const Cell after = entry->list.empty() ? 0 : entry->list.spans().back().end_cell();
    read_reservations();
    const std::pair own{entry->reservation.cell(), entry->reservation.length()};
    if (count > twin_.free_cells()) return expect_full(*entry, count, after);
    const auto expected = twin_.plan(count, after, own, ahead);
    SpanList claimed = pool_->claim(count, entry->twin.end(), after, entry->reservation, ahead);
    CellSpans runs;
    std::int32_t position = entry->twin.end();
    for (const auto& [cell, length] : expected) {
      append_span(runs, {cell, length, position});
      position += static_cast<std::int32_t>(length);
    }
    if (!expected.empty() && runs != claimed.spans()) return "claim took other cells than the policy says";
    bool were_free = true;
    const auto contents = twin_.write(claimed.spans(), were_free);
    if (!were_free) return "claim returned a cell that is held";
    if (contents.size() != count) return "claim returned another number of cells";
    entry->twin.contents.insert(entry->twin.contents.end(), contents.begin(), contents.end());
    entry->list.append(std::move(claimed));
    return {};
  }

  std::string expect_full(PoolEntry& entry, std::uint32_t count, Cell after) {
    const std::string before = pool_->dump();
    try {
      pool_->claim(count, entry.twin.end(), after, entry.reservation, 4);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCacheFull) return std::string("claim failed otherwise: ") + error.what();
      if (error.cache_full().needed != count || error.cache_full().free != twin_.free_cells()) return "wrong counts";
      return before == pool_->dump() ? "" : "a refused claim changed the pool";
    }
    return "claim gave more cells than there are";
  }

  void share() {
    PoolEntry* from = any();
    if (from == nullptr) return;
    std::int32_t begin = somewhere(from->twin), end = somewhere(from->twin);
    if (begin > end) std::swap(begin, end);
    const auto first = from->twin.contents.begin();
    NaiveList twin{true, begin, {first + (begin - from->twin.position), first + (end - from->twin.position)}};
    SpanList list = from->list.share(begin, end);
    add(std::move(list), std::move(twin), nullptr);
  }

  void borrow() {
    PoolEntry* from = any_counted();
    if (from == nullptr) return;
    SpanList list(*pool_, false);
    list.append(from->list.spans());
    NaiveList twin = from->twin;
    twin.counted = false;
    add(std::move(list), std::move(twin), from);
  }

  // Borrowers must not outlive what they borrow.
  void drop_borrowers(const PoolEntry& lender) {
    for (std::size_t i = 0; i < entries_.size();) {
      if (entries_[i]->lender == &lender) {
        erase(i);
      } else {
        ++i;
      }
    }
  }
  void erase(std::size_t index) {
    std::erase(twin_.lists, &entries_[index]->twin);
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  void erase(const PoolEntry& entry) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].get() == &entry) return erase(i);
    }
  }

  void split() {
    PoolEntry* entry = any();
    if (entry == nullptr) return;
    if (entry->twin.counted) drop_borrowers(*entry);
    const std::int32_t at = somewhere(entry->twin);
    SpanList rest = entry->list.split(at);
    NaiveList twin{entry->twin.counted, at, {}};
    const auto kept = entry->twin.contents.begin() + (at - entry->twin.position);
    twin.contents.assign(kept, entry->twin.contents.end());
    entry->twin.contents.erase(kept, entry->twin.contents.end());
    add(std::move(rest), std::move(twin), entry->lender);
  }

  void join() {
    PoolEntry* first = any();
    PoolEntry* second = any();
    if (first == nullptr || first == second || first->twin.counted != second->twin.counted) return;
    if (first->lender != second->lender || first->list.empty() || second->list.empty()) return;
    drop_borrowers(*second);
    const std::int32_t delta = first->twin.end() - second->twin.position;
    second->list.shift_positions(delta);
    first->list.append(std::move(second->list));
    first->twin.contents.insert(first->twin.contents.end(), second->twin.contents.begin(), second->twin.contents.end());
    second->twin.contents.clear();
    erase(*second);
  }

  void truncate() {
    PoolEntry* entry = any();
    if (entry == nullptr) return;
    drop_borrowers(*entry);
    const std::int32_t at = somewhere(entry->twin);
    entry->list.truncate(at);
    entry->twin.contents.resize(static_cast<std::size_t>(at - entry->twin.position));
  }

  void destroy() {
    PoolEntry* entry = any();
    if (entry == nullptr) return;
    drop_borrowers(*entry);
    erase(*entry);
  }

  void shift(PoolEntry& entry) {
    const auto delta = static_cast<std::int32_t>(below(9)) - std::min(4, entry.twin.position);
    entry.list.shift_positions(delta);
    entry.twin.position += delta;
  }

  // Calls that must be refused and change nothing.
  std::string refuse() {
    PoolEntry* entry = any_counted();
    if (entry == nullptr || entry->list.empty()) return {};
    const std::string before = pool_->dump();
    const CellSpans spans = entry->list.spans();
    try {
      entry->list.append(CellSpan{0, 1, entry->list.end_position() + 1});
      return "a gap in positions was accepted";
    } catch (const Error&) {
    }
    try {
      entry->list.append(CellSpan{twin_.cells(), 1, entry->list.end_position()});
      return "a cell outside the pool was accepted";
    } catch (const Error&) {
    }
    return before == pool_->dump() && spans == entry->list.spans() ? "" : "a refused append changed something";
  }

  void move_around() {
    PoolEntry* entry = any();
    if (entry == nullptr) return;
    SpanList taken = std::move(entry->list);
    SpanList again(std::move(taken));
    entry->list = std::move(again);
  }

  void compact() {
    for (const CellMove& move : pool_->compact()) twin_.move(move.from, move.to, move.length);
    twin_.forget_from(pool_->held_cells());
  }

  std::string compare() {
    if (!hook_fault_.empty()) return hook_fault_;
    if (twin_.collect() != freed_) return "other cells became free than nobody holds";
    const auto faults = pool_->check();
    if (!faults.empty()) return faults.front();
    if (pool_->free_cells() != twin_.free_cells()) return "free cells differ";
    if (pool_->held_cells() + pool_->free_cells() != twin_.cells()) return "held and free are not everything";
    for (const auto& entry : entries_) {
      const std::string fault = compare(*entry);
      if (!fault.empty()) return fault;
    }
    return {};
  }

  std::string compare(const PoolEntry& entry) {
    std::size_t index = 0;
    std::uint32_t alone = 0;
    for (const CellSpan& span : entry.list.spans()) {
      if (span.position != entry.twin.position + static_cast<std::int32_t>(index)) return "a position is wrong";
      for (Cell cell = span.cell; cell < span.end_cell(); ++cell, ++index) {
        if (index >= entry.twin.contents.size()) return "a list is too long";
        const std::uint64_t content = entry.twin.contents[index];
        if (twin_.content(cell) != content) return "label and data disagree";
        const std::uint32_t holders = twin_.holders(content);
        if (pool_->holders_of(cell) != holders) return "holders differ";
        if (holders == 1) ++alone;
      }
    }
    if (index != entry.twin.contents.size()) return "a list is too short";
    if (pool_->cells_held_only(entry.list.spans(), 1) != alone) return "cells_held_only differs";
    const auto [few, many] = pool_->split_by_holders(entry.list.spans(), 1);
    std::uint32_t split_alone = 0, shared = 0;
    for (const CellSpan& span : few) split_alone += span.length;
    for (const CellSpan& span : many) shared += span.length;
    return split_alone == alone && alone + shared == index ? "" : "split_by_holders differs";
  }

  Random random_;
  std::set<Cell> freed_;  // what on_free named in this step; outlives the pool, which calls it
  std::string hook_fault_;
  std::shared_ptr<CellPool> pool_;
  NaivePool twin_;
  std::vector<std::unique_ptr<PoolEntry>> entries_;
};

}  // namespace kvtrie::oracle
