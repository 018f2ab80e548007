// The requests and events of a simulated day.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "day_world.h"

namespace kvtrie::oracle::day {

class Day final : public World {
 public:
  using World::World;

 private:
  // --- requests --------------------------------------------------------------------------------------------------
  void serve() override {
    const auto begun = std::chrono::steady_clock::now();
    stall_ = 0;
    const std::size_t user = by_user_.draw(random_) % users_.size();
    serve(user);
    Figures& here = figures();
    ++here.requests;
    here.stall = std::max(here.stall, stall_);
    here.computed += std::exchange(scratch_.computed, 0);
    here.rows += std::exchange(scratch_.rows, 0);
    if (random_.chance(0.35)) server_->state().writer->drain();
    if (random_.chance(0.25)) server_->state().exchange->drain();
    check_budgets();
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    if (took > report.longest_call) report.longest_call = took, report.longest_call_at = request_;
    if (request_ % kCheckEvery == kCheckEvery - 1) check();
    if (dying_ > 0 && --dying_ == 0) die();
  }

  void serve(std::size_t user) {
    const std::uint32_t dice = random_.below(100);
    if (dice < 3) return elsewhere(user);
    if (dice < 9) return by_hand(user);
    if (dice < 15) return batch();
    const OpenPtr open = open_of(user);
    User& person = users_[user];
    if (person.turns == 0 || person.text.length() > 1100 || dice < 24) return talk(user, /*anew=*/true);
    if (dice < 60) return talk(user, false);
    if (dice < 70) return edit(user, open);
    if (dice < 80) return regenerate(user, open);
    if (dice < 88) return fan_out(user);
    if (dice < 94) return cancel(user);
    if (open != nullptr) return shift(user, open);
    talk(user, false);
  }

  // --- conversations
  OpenPtr open_of(std::size_t user) const {
    const auto found =
        std::find_if(open_.begin(), open_.end(), [&](const OpenPtr& each) { return each->user == user; });
    return found == open_.end() ? nullptr : *found;
  }
  void drop(const OpenPtr& open) {
    if (random_.chance(0.7)) open->session->close();
    std::erase(open_, open);
  }
  std::string tenant_of(std::size_t user) const { return tenants_[users_[user].tenant]; }

  // The user's conversation under the model that serves now.
  Text& text_of(std::size_t user) {
    User& person = users_[user];
    person.text.rename(models_[model_].seed(tenant_of(user)));
    return person.text;
  }
  void begin_anew(std::size_t user) {
    User& person = users_[user];
    person.text = Text(models_[model_].seed(tenant_of(user)));
    person.text.append(library_.system(person.tenant, random_));
    if (random_.chance(0.5)) person.text.append(library_.document(person.tenant, random_));
    person.turns = 0;
  }
  Piece question() {
    if (random_.chance(0.04)) return Library::image(random_);
    return Library::words(random_, random_.between(3, random_.chance(0.1) ? 160 : 30));
  }
  BeginOptions options_for(const Text& text) {
    BeginOptions options;
    options.atomic = text.groups();
    options.reuse_all = random_.chance(0.02);
    options.use = !random_.chance(0.02);
    options.publish = !random_.chance(0.03);
    options.always_load = random_.chance(0.1);
    return options;
  }

  // A session that stands at the end of the text; none: refused. Older ones make room.
  OpenPtr begin_open(std::size_t user, const Text& text) {
    while (open_.size() >= kMostOpen) drop(open_.front());
    for (int attempt = 0; attempt < 4; ++attempt) {
      const SessionPtr session = begin(*server_, tenant_of(user), text, options_for(text));
      if (session == nullptr && armed_ == 0) return nullptr;
      if (session == nullptr) continue;
      auto open = std::make_shared<Open>(Open{user, tenant_of(user), session, text, true});
      extra_held_ = static_cast<std::uint64_t>(text.length()) + 64;
      const bool whole = prefill(*server_, session, text, false);
      extra_held_ = 0;
      if (whole) return open;
      session->close();
      for (int i = 0; i < 4 && !open_.empty(); ++i) drop(open_.front());
    }
    return nullptr;
  }

  void answer(std::size_t user, const OpenPtr& open) {
    User& person = users_[user];
    person.answer_at = open->text.length();
    static_cast<void>(decode(*open, random_.between(1, 14)));
    server_->verify(*open->session, open->text);
    person.text = open->text;
    ++person.turns;
    if (!person.keeps_open || random_.chance(0.2)) drop_or_forget(open);
  }
  void drop_or_forget(const OpenPtr& open) {
    if (std::find(open_.begin(), open_.end(), open) != open_.end()) return drop(open);
    if (random_.chance(0.7)) open->session->close();
  }
  void keep_open(const OpenPtr& open) {
    if (std::find(open_.begin(), open_.end(), open) == open_.end()) open_.push_back(open);
  }

  // A turn: a question and its answer, in a session that is open or in a new one.
  void talk(std::size_t user, bool anew) {
    User& person = users_[user];
    OpenPtr open = open_of(user);
    if (anew || (open != nullptr && open->text.tokens() != text_of(user).tokens())) {
      if (open != nullptr) drop(open);
      open = nullptr;
    }
    if (anew) begin_anew(user);
    Text& text = text_of(user);
    person.turn_at = text.length();
    const Piece asked = question();
    if (open != nullptr && text.length() + static_cast<std::int32_t>(asked.tokens.size()) < 1400) {
      if (!call("append", {ErrorKind::kArgument}, [&] { open->session->append(asked.tokens); })) return drop(open);
      open->text.append(asked);
      if (!prefill(*server_, open->session, open->text, false)) return drop(open);
    } else {
      if (open != nullptr) drop(open);
      text.append(asked);
      open = begin_open(user, text);
      if (open == nullptr) return;
      keep_open(open);
    }
    answer(user, open);
  }

  // An earlier question is changed: the rest of the conversation goes on from there.
  void edit(std::size_t user, OpenPtr open) {
    User& person = users_[user];
    Text& text = text_of(user);
    const std::int32_t at = text.whole(random_.chance(0.5) ? std::min(person.turn_at, text.length())
                                                           : random_.between(1, std::max(1, text.length() - 1)));
    if (open != nullptr && open->kept) open = rewind(open, at);
    if (open == nullptr) {
      text.cut(std::max(1, at));
      if (text.length() == 0) return begin_anew(user);
      return talk(user, false);
    }
    text = open->text;
    talk(user, false);
  }

  // As far back as can be. None: the session is gone.
  OpenPtr rewind(const OpenPtr& open, std::int32_t length) {
    const bool can = open->session->can_rewind(length);
    keep(can || !server_->dense(), "full attention cannot go back to ", length, " of ", open->text.length());
    std::int32_t to = length;
    if (!can) {
      try {
        open->session->rewind(length);
        break_promise(Promise::kKept, "went back to ", length, ", which cannot be");
      } catch (const Error& error) {
        keep(error.kind() == ErrorKind::kNotRestorable, "rewind failed: ", error.what());
        to = static_cast<std::int32_t>(error.nearest());
        keep(to >= 0 && to <= length && open->session->can_rewind(to), "nearest is ", to, ", which cannot be");
      }
    }
    open->session->rewind(to);
    ++server_->calls.rewinds;
    open->text.cut(to);
    keep(open->text.length() == to, "went back into a span, to ", to);
    server_->verify(*open->session, open->text);
    note(static_cast<std::uint64_t>(to));
    if (to > 0) return open;
    drop(open);
    return nullptr;
  }

  void regenerate(std::size_t user, OpenPtr open) {
    User& person = users_[user];
    Text& text = text_of(user);
    const std::int32_t at = text.whole(std::min(person.answer_at, text.length()));
    if (at < 1) return talk(user, false);
    if (open != nullptr && open->text.length() >= at && open->kept) open = rewind(open, at);
    if (open == nullptr) {
      text.cut(at);
      if (text.length() == 0) return begin_anew(user);
      open = begin_open(user, text);
      if (open == nullptr) return;
      keep_open(open);
    }
    answer(user, open);
  }

  // Several answers to one question, in one step each time; one of them stays.
  void fan_out(std::size_t user) {
    Text text = text_of(user);
    text.append(question());
    const OpenPtr root = begin_open(user, text);
    if (root == nullptr) return;
    std::vector<OpenPtr> all{root};
    for (std::int32_t i = random_.between(1, 3); i > 0; --i) {
      SessionPtr session;
      if (!call("branch", {}, [&] { session = root->session->branch(); })) break;
      ++server_->calls.branches;
      all.push_back(std::make_shared<Open>(Open{user, root->name_space, session, text, true}));
    }
    extra_held_ = static_cast<std::uint64_t>(text.length()) + 100 * all.size();
    for (int round = 0; round < 4 && step_together(all, 1); ++round) {
    }
    extra_held_ = 0;
    const OpenPtr best = all[random_.below(all.size())];
    for (const OpenPtr& each : all) {
      server_->verify(*each->session, each->text);
      if (each != best && random_.chance(0.7)) each->session->close();
    }
    users_[user].text = best->text;
    users_[user].answer_at = text.length();
    if (const OpenPtr before = open_of(user)) drop(before);
    if (users_[user].keeps_open && best->session->length() == best->text.length()) keep_open(best);
  }

  // Each goes on by `count` tokens, all in one step. False: refused.
  bool step_together(const std::vector<OpenPtr>& all, std::int32_t count) {
    std::vector<SessionPtr> sessions;
    std::vector<const Text*> texts;
    for (const OpenPtr& each : all) {
      const Piece words = Library::words(random_, count);
      if (!call("append", {ErrorKind::kArgument}, [&] { each->session->append(words.tokens); })) continue;
      each->text.append(words);
      sessions.push_back(each->session);
      texts.push_back(&each->text);
    }
    if (sessions.empty()) return false;
    StepPtr step;
    if (!call("batch", {}, [&] { step = server_->cache->batch(sessions, 64); })) return false;
    compute(*server_, *step, texts);
    return true;
  }

  // Conversations of several users go on together.
  void batch() {
    std::vector<OpenPtr> chosen;
    for (const OpenPtr& each : open_) {
      if (each->kept && each->text.length() < 1300 && chosen.size() < 6 && random_.chance(0.3)) chosen.push_back(each);
    }
    if (chosen.empty()) return talk(by_user_.draw(random_) % users_.size(), false);
    for (int round = 0; round < 3 && step_together(chosen, 1); ++round) {
    }
    for (const OpenPtr& each : chosen) {
      server_->verify(*each->session, each->text);
      users_[each->user].text = each->text;
    }
  }

  // A prompt is stopped half way: the step is dropped, the session closed or simply gone.
  void cancel(std::size_t user) {
    Text text = text_of(user);
    text.append(library_.document(users_[user].tenant, random_));
    if (text.length() > 1500) text.cut(1500);
    const SessionPtr session = begin(*server_, tenant_of(user), text, options_for(text));
    if (session == nullptr) return;
    extra_held_ = static_cast<std::uint64_t>(text.length()) + 64;
    static_cast<void>(prefill(*server_, session, text, true));
    extra_held_ = 0;
    server_->verify(*session, text);
    if (random_.chance(0.5)) session->close();
  }

  // The conversation is at its limit: some of it goes, the rest moves down.
  void shift(std::size_t user, const OpenPtr& open) {
    const Text before = open->text;
    if (before.length() < 24 || !before.spans().empty()) return drop(open);
    std::optional<Tokens> instead;
    constexpr std::int32_t kKeep = 8;
    if (!call("shift", {ErrorKind::kNotSupported}, [&] { instead = open->session->shift(kKeep); })) return drop(open);
    if (instead) {
      keep(static_cast<std::int32_t>(instead->size()) < before.length(), "a shift names as many tokens as there were");
      drop(open);
      users_[user].text = Text(models_[model_].seed(tenant_of(user)));
      users_[user].text.append(std::span<const Token>(*instead));
      return talk(user, false);
    }
    const std::int32_t gone = before.length() - open->session->recorded();
    keep(gone > 0, "a shift moved nothing");
    open->text.drop(kKeep, kKeep + gone);
    open->kept = false;
    keep(open->session->tokens() == open->text.tokens(), "a shift left other tokens");
    server_->verify_values(*open->session, open->text.hashes());
    static_cast<void>(decode_shifted(*open, 3));
    drop(open);
    begin_anew(user);
  }
  // Of a session that is private: nobody may ever match what it computes.
  bool decode_shifted(Open& open, std::int32_t count) {
    for (std::int32_t i = 0; i < count; ++i) {
      const Piece word = Library::words(random_, 1);
      if (!call("append", {ErrorKind::kArgument}, [&] { open.session->append(word.tokens); })) return false;
      open.text.append(word);
      StepPtr step;
      if (!call("decode", {}, [&] { step = open.session->decode(); })) return false;
      server_->compute(*step, {&open.text});
    }
    server_->verify_values(*open.session, open.text.hashes());
    return true;
  }

  // Another process that has nothing but the store in common.
  void elsewhere(std::size_t user) {
    if (users_[user].turns == 0) return talk(user, true);
    Text text = text_of(user);
    text.append(question());
    const SessionPtr session = begin(*neighbour_, tenant_of(user), text, options_for(text));
    if (session == nullptr) return;
    static_cast<void>(prefill(*neighbour_, session, text, false));
    neighbour_->verify(*session, text);
    session->close();
    neighbour_->state().exchange->drain();
  }

  // --- by hand ---------------------------------------------------------------------------------------------------
  void by_hand(std::size_t user) {
    const std::string name_space = tenant_of(user);
    Text text = text_of(user);
    if (text.length() == 0) return talk(user, true);
    if (random_.chance(0.4)) text.cut(std::max(1, random_.between(1, text.length())));
    if (text.length() == 0) return talk(user, true);
    const Tokens keys = PrefixCache::keys(text.tokens(), text.groups());
    PrefixCache& cache = *server_->cache;
    const std::uint64_t bytes = random_.below(200) * server_->bytes_per_token();
    switch (random_.below(9)) {
      case 0:
        return pin(name_space, text, keys);
      case 1:
        static_cast<void>(call("unpin", {}, [&] { note(static_cast<std::uint64_t>(cache.unpin(name_space, keys))); }));
        return;
      case 2:
        return checkpoint(user);
      case 3:
        static_cast<void>(call("page_out", {}, [&] { note(cache.page_out(name_space, keys, any_tier())); }));
        return;
      case 4:
        static_cast<void>(call("evict", {}, [&] { note(cache.evict(name_space, keys)); }));
        return;
      case 5:
        return free_bytes("page_out", bytes, [&] { return cache.page_out_bytes(bytes, any_tier()); });
      case 6:
        return free_bytes("evict", bytes, [&] { return cache.evict_bytes(bytes); });
      case 7:
        return restore(name_space, text, keys);
      default:
        static_cast<void>(
            call("plan", {}, [&] { note(static_cast<std::uint64_t>(cache.plan(name_space, keys).reusable)); }));
    }
  }
  Tier any_tier() { return std::array{Tier::kHost, Tier::kHost, Tier::kDisk, Tier::kStore}[random_.below(4)]; }

  template <class Free>
  void free_bytes(const char* what, std::uint64_t wanted, Free&& free) {
    doing = what;
    const std::uint64_t freeable = server_->state().device_budget.freeable_bytes();
    try {
      const std::uint64_t freed = free();
      keep(freed >= wanted, what, " freed ", freed, " of ", wanted);
      note(freed);
    } catch (const Error& error) {
      keep(error.kind() == ErrorKind::kCacheFull && wanted > std::min(freeable, server_->state().host->cap()), what,
           " of ", wanted, " failed: ", error.what());
    }
  }

  void pin(const std::string& name_space, const Text& text, const Tokens& keys) {
    std::int32_t pinned = 0;
    const std::optional<double> ttl = random_.chance(0.8) ? std::optional(60.0 + random_.below(1800)) : std::nullopt;
    if (!call("pin", {}, [&] { pinned = server_->cache->pin(name_space, keys, ttl); })) return;
    keep(pinned <= known_prefix(text), "pinned ", pinned, " tokens that nobody computed");
    keep(server_->state().leases.pinned_tokens() <=
             std::max<std::uint64_t>(pinned_before_, server_->state().leases.cap()),
         "pins hold ", server_->state().leases.pinned_tokens(), " of ", server_->state().leases.cap());
    pinned_before_ = server_->state().leases.pinned_tokens();
    note(static_cast<std::uint64_t>(pinned));
  }

  void checkpoint(std::size_t user) {
    const OpenPtr open = open_of(user);
    if (open == nullptr) return talk(user, false);
    std::int32_t at = 0;
    if (call("checkpoint", {ErrorKind::kNotSupported}, [&] { at = open->session->checkpoint(); }))
      keep(at == open->session->length() || at == 0, "a checkpoint at ", at, ", the session stands at ",
           open->session->length());
  }

  void restore(const std::string& name_space, const Text& text, const Tokens& keys) {
    const PrefixCacheStats before = server_->cache->stats();
    std::int32_t now = 0;
    const bool done = call("restore", {}, [&] { now = server_->cache->restore(name_space, keys); });
    const PrefixCacheStats after = server_->cache->stats();
    server_->calls.begins += done;
    server_->calls.hits += done && now > 0;
    server_->calls.matched += after.matched_tokens - before.matched_tokens;
    server_->calls.reused += static_cast<std::uint64_t>(done ? now : 0);
    keep(now <= known_prefix(text), "restored ", now, " tokens that nobody computed");
  }

  // --- events ----------------------------------------------------------------------------------------------------
  void happen(const Event& event) override {
    doing = cat(name_of(event.what), event.begins ? "" : " ends");
    if (verbose_) std::cerr << "  " << now_ << " s, request " << request_ << ": " << doing << "\n";
    step_hour();
    note(static_cast<std::uint64_t>(event.what) * 2 + event.begins);
    switch (event.what) {
      case What::kAudit:
        return audit();
      case What::kKill:
        return kill();
      case What::kRestart:
        return restart(model_);
      case What::kSwap:
        return restart(random_.below(models_.size()));
      case What::kFlush:
        flush();
        if (dying_ < 0 && random_.chance(0.5)) die();
        return;
      case What::kSave:
        return save();
      case What::kLimits:
        return change_limits();
      case What::kNamespaceGoes:
        return evict_all_of(random_.below(tenants_.size()));
      case What::kDamageFile:
        figures().damaged += disk_->damage();
        return;
      case What::kDamageMemory:
        if (const auto [memory, at] = server_->damage_memory(random_); memory != nullptr) {
          disk_->taint(memory, at);
          ++figures().damaged;
        }
        return;
      default:
        return change_weather(event);
    }
  }

  void change_weather(const Event& event) {
    const bool on = event.begins;
    switch (event.what) {
      case What::kDiskFull:
        return disk_->set_room(on ? disk_->bytes() + random_.below(20000) : DayDisk::kNoEnd);
      case What::kDiskSick:
        return disk_->set_odds(!on ? 0 : random_.chance(0.5) ? 0.03 : 0.5);
      case What::kDiskSlow:
        return disk_->set_seconds(on ? 0.08 : 0.0005);
      case What::kStoreGone:
        store_->mood = on ? DayStore::Mood::kGone : DayStore::Mood::kWell;
        return;
      case What::kStoreSlow:
        store_->mood = on ? DayStore::Mood::kSlow : DayStore::Mood::kWell;
        return;
      case What::kStoreLies:
        store_->mood = on ? DayStore::Mood::kLying : DayStore::Mood::kWell;
        return;
      case What::kStoreEvicts:
        for (std::uint32_t i = random_.below(200); i > 0; --i) store_->evict_one();
        return;
      case What::kClockStands:
        events_.clock_stands_at = on ? std::optional(clock()) : std::nullopt;
        return;
      case What::kClockAhead:
        events_.clock_error = on ? 4000.0 + random_.below(20000) : 0;
        return;
      case What::kClockBehind:
        events_.clock_error = on ? -1000.0 - random_.below(20000) : 0;
        return;
      default:
        events_.short_of_memory = on;
    }
  }

  // At one of the next calls of the file system, or between two requests.
  void kill() {
    if (dying_ >= 0) return;
    if (random_.chance(0.3)) return die();
    disk_->go_dark_after(1 + random_.below(120));
    dying_ = random_.between(1, 4);
  }

  void save() {
    if (dying_ >= 0) return;
    const std::string folder = "/day/saved";
    const bool well = disk_->is_well(), dense = server_->dense();
    std::vector<KeptPath> paths;
    server_->state().trie.visit([&](Node& node) {
      if (!node.is_root() && node.is_leaf()) paths.push_back({node.name_space(), path_tokens(&node), {}});
    });
    try {
      server_->cache->save(folder);
    } catch (const Error& error) {
      const std::string why = error.what();
      return keep(error.kind() == ErrorKind::kFormat && (!well || why.find("host memory is full") != std::string::npos),
                  "save failed: ", why);
    }
    if (!well) return;
    PrefixCacheOptions options = options_here();
    options.store = nullptr;
    options.disk = folder;
    options.disk_bytes = 1u << 30;
    options.files = disk_;
    Server copy(models_[model_], options, cells_, scratch_);
    for (const KeptPath& path : paths) {
      if (!dense || server_->damaged_in_memory() || !disk_->damaged_names.empty()) break;
      keep(copy.knows(path), "save said all is in ", folder, ", and a path of ", path.keys.size(), " tokens is not");
      ++figures().kept_paths;
    }
    copy.audit(disk_->damaged_names, true);
    copy.check();
    copy.close();
  }

  void change_limits() {
    PrefixCacheState& state = server_->state();
    const Caps before = state.capacity.caps();
    Limits limits;
    const auto part = [&](std::uint64_t of) { return std::max<std::uint64_t>(1, of * random_.between(15, 100) / 100); };
    for (const auto& cache : server_->cache->caches())
      limits.held_cells.push_back(
          random_.chance(0.4) ? std::nullopt : std::optional(static_cast<std::uint32_t>(part(cache->capacity()))));
    for (const auto& cache : server_->cache->states())
      limits.held_slots.push_back(
          random_.chance(0.4) ? std::nullopt : std::optional(static_cast<std::uint32_t>(part(cache->capacity()))));
    if (random_.chance(0.6)) limits.host_bytes = part(cells_ * 48ull);
    if (random_.chance(0.6)) limits.disk_bytes = part(cells_ * 140ull);
    const std::uint64_t highest = std::max(disk_bytes_, limits.disk_bytes.value_or(0));
    disk_->watch(kFolder, foreign_bytes_ + highest);
    try {
      const Caps wanted = state.capacity.caps_for(limits, state.exchange->room());
      server_->cache->set_limits(limits);
      if (limits.disk_bytes) disk_bytes_ = *limits.disk_bytes;
      for (std::size_t i = 0; i < wanted.units.size(); ++i)
        keep(state.caches.all[i]->limit() == wanted.units[i], "the limit of cache ", i, " is ",
             state.caches.all[i]->limit(), ", asked for ", wanted.units[i]);
      keep(state.host->cap() == wanted.host, "the cap of host memory is ", state.host->cap(), ", asked for ",
           wanted.host);
    } catch (const Error& error) {
      const Caps after = state.capacity.caps();
      keep(error.kind() == ErrorKind::kCacheFull && after.units == before.units && after.host == before.host &&
               after.disk == before.disk,
           "limits that were refused were changed, or: ", error.what());
      ++figures().refused;
    }
    most_host_ = std::max(most_host_, state.host->cap());
    disk_->watch(kFolder, foreign_bytes_ + disk_bytes_);
    keep(state.lower.disk()->budget().cap() == disk_bytes_, "the disk's cap is ", state.lower.disk()->budget().cap());
    check();
    check_budgets();
  }

  // All of a namespace goes: nothing of it is known afterwards, as far as nobody holds it.
  void evict_all_of(std::size_t tenant) {
    const std::string& name = tenants_[tenant];
    const bool held =
        std::any_of(open_.begin(), open_.end(), [&](const OpenPtr& each) { return each->name_space == name; });
    for (bool more = true; more;) {
      more = false;
      std::vector<Tokens> leaves;
      server_->state().trie.visit([&](Node& node) {
        if (!node.is_root() && node.is_leaf() && node.name_space() == name) leaves.push_back(path_tokens(&node));
      });
      for (const Tokens& leaf : leaves) {
        static_cast<void>(server_->cache->unpin(name, leaf));
        const std::uint64_t before = server_->state().trie.size();
        static_cast<void>(server_->cache->evict(name, leaf));
        more = more || server_->state().trie.size() != before;
      }
    }
    std::size_t left = 0;
    server_->state().trie.visit([&](Node& node) { left += !node.is_root() && node.name_space() == name; });
    keep(held || left == 0 || server_->cache->stats().pins > 0, left, " nodes of ", name, " cannot be evicted");
    check();
  }

  std::uint64_t pinned_before_ = 0;
};

}  // namespace kvtrie::oracle::day
