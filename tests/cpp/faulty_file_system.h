// A file system in memory that fails on command and loses what was not synced.
//
// Concept. Bytes of a file are durable once `File::sync` returned, names once `sync_folder` did. `crash` throws away
// the rest: all of it, or (given a random source) a part of it: each rename, creation and removal since the last sync
// of the folder may have happened or not, and of the bytes that were not synced any number may be there, right or
// wrong.
//
//     fail(kind, nth, error, once)   the nth call of a kind from now on fails; with `once` false, all later ones too
//     lose_power_at(n)               the nth call of any kind from now on, and all later ones, fail without effect
//
// A failing write leaves half of its bytes. Faults apply to open files, too.
//
// Threads: any.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "failing_allocations.h"
#include "store/file_system.h"

namespace kvtrie::test {

enum class Call : std::uint8_t {
  kMakeFolder,
  kList,
  kCreate,
  kOpen,
  kWrite,
  kRead,
  kInfo,
  kSync,
  kClose,
  kRename,
  kRemove,
  kSyncFolder,
  kLock,
  kCount
};

class FaultyFileSystem final : public FileSystem {
 public:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  void fail(Call kind, std::uint64_t nth, int error, bool once) {
    const std::lock_guard lock(disk_->mutex);
    disk_->kind = kind;
    disk_->left = nth;
    disk_->error = error;
    disk_->once = once;
    disk_->faults = 0;
  }
  void lose_power_at(std::uint64_t call) {
    const std::lock_guard lock(disk_->mutex);
    disk_->power_left = call;
  }
  void heal() {
    const std::lock_guard lock(disk_->mutex);
    disk_->left = disk_->power_left = kNever;
  }
  std::uint64_t faults() const {
    const std::lock_guard lock(disk_->mutex);
    return disk_->faults;
  }
  bool has_power() const {
    const std::lock_guard lock(disk_->mutex);
    return disk_->power_left > 0;
  }
  std::uint64_t calls(Call kind) const {
    const std::lock_guard lock(disk_->mutex);
    return disk_->calls.at(static_cast<std::size_t>(kind));
  }
  // The most bytes the folder ever held.
  std::uint64_t peak_bytes() const {
    const std::lock_guard lock(disk_->mutex);
    return disk_->peak;
  }
  std::uint64_t bytes() const {
    const std::lock_guard lock(disk_->mutex);
    return disk_->bytes();
  }
  std::set<std::string> paths() const {
    const std::lock_guard lock(disk_->mutex);
    std::set<std::string> paths;
    for (const auto& [path, node] : disk_->names) paths.insert(path);
    return paths;
  }

  std::function<void()> before_remove;  // called in each removal, before anything goes; set while nobody calls

  // Everything that was not synced is gone; what is left is durable, and works again.
  void crash() { crash(nullptr); }
  void crash(std::mt19937_64& random) { crash(&random); }

  int make_folder(const std::string&, FolderAccess& access) override {
    const std::lock_guard lock(disk_->mutex);
    access = FolderAccess::kOwn;
    return disk_->fault(Call::kMakeFolder);
  }

  int list(const std::string& folder, std::vector<std::string>& names) override {
    const testing::AllocationsOfTest mine;
    const std::lock_guard lock(disk_->mutex);
    if (const int error = disk_->fault(Call::kList)) return error;
    for (const auto& [path, node] : disk_->names) {
      if (path.starts_with(folder + "/")) names.push_back(path.substr(folder.size() + 1));
    }
    return 0;
  }

  int create(const std::string& path, std::unique_ptr<File>& file) override {
    const testing::AllocationsOfTest mine;
    const std::lock_guard lock(disk_->mutex);
    if (const int error = disk_->fault(Call::kCreate)) return error;
    if (disk_->names.contains(path)) return EEXIST;
    const auto node = std::make_shared<Node>();
    node->number = ++disk_->last_number;
    disk_->change({"", path, node});
    file = std::make_unique<OpenFile>(disk_, node);
    return 0;
  }

  int open(const std::string& path, std::unique_ptr<File>& file, FileInfo& info) override {
    const testing::AllocationsOfTest mine;
    const std::lock_guard lock(disk_->mutex);
    if (const int error = disk_->fault(Call::kOpen)) return error;
    const auto found = disk_->names.find(path);
    if (found == disk_->names.end()) return ENOENT;
    info = found->second->info();
    file = std::make_unique<OpenFile>(disk_, found->second);
    return 0;
  }

  int rename(const std::string& from, const std::string& to) override {
    const testing::AllocationsOfTest mine;
    const std::lock_guard lock(disk_->mutex);
    if (const int error = disk_->fault(Call::kRename)) return error;
    const auto found = disk_->names.find(from);
    if (found == disk_->names.end()) return ENOENT;
    disk_->change({from, to, found->second});
    return 0;
  }

  int remove(const std::string& path) override {
    const testing::AllocationsOfTest mine;
    if (before_remove) before_remove();
    const std::lock_guard lock(disk_->mutex);
    if (const int error = disk_->fault(Call::kRemove)) return error;
    if (!disk_->names.contains(path)) return ENOENT;
    disk_->change({path, "", nullptr});
    return 0;
  }

  int sync_folder(const std::string&) override {
    const testing::AllocationsOfTest mine;
    const std::lock_guard lock(disk_->mutex);
    if (const int error = disk_->fault(Call::kSyncFolder)) return error;
    for (const Change& change : disk_->unsynced) apply(disk_->durable_names, change);
    disk_->unsynced.clear();
    return 0;
  }

  int lock(const std::string& path, std::unique_ptr<File>& held) override {
    const testing::AllocationsOfTest mine;
    const std::lock_guard lock(disk_->mutex);
    if (const int error = disk_->fault(Call::kLock)) return error;
    if (!disk_->locks.insert(path).second) return EWOULDBLOCK;
    held = std::make_unique<HeldLock>(disk_, path, disk_->lives);
    return 0;
  }

  int hold_folder(const std::string& path, std::unique_ptr<File>& held) override {
    const testing::AllocationsOfTest mine;
    const std::lock_guard lock(disk_->mutex);
    if (!disk_->locks.insert(path).second) return EWOULDBLOCK;
    held = std::make_unique<HeldLock>(disk_, path, disk_->lives);
    return 0;
  }

 private:
  struct Node {
    std::uint64_t number = 0;
    std::vector<std::byte> bytes;
    std::size_t synced = 0;  // so many bytes at the beginning
    std::int64_t written = 0;
    bool named = false;  // in `names`

    FileInfo info() const { return {true, bytes.size(), static_cast<double>(written), {1, number, written}}; }
  };

  // `from` is no name any more, unless empty; `to` is one for `node`, unless empty.
  struct Change {
    std::string from, to;
    std::shared_ptr<Node> node;
  };
  using Names = std::map<std::string, std::shared_ptr<Node>>;

  static void apply(Names& names, const Change& change) {
    if (!change.from.empty()) names.erase(change.from);
    if (!change.to.empty()) names[change.to] = change.node;
  }

  struct Disk {
    mutable std::mutex mutex;
    Names names, durable_names;
    std::vector<Change> unsynced;
    std::set<std::string> locks;
    std::array<std::uint64_t, static_cast<std::size_t>(Call::kCount)> calls{};
    Call kind = Call::kCount;
    std::uint64_t left = kNever, power_left = kNever, faults = 0, peak = 0, last_number = 0, lives = 0;
    std::uint64_t held = 0;  // bytes of what has a name
    std::int64_t clock = 0;
    int error = 0;
    bool once = true;

    int fault(Call call) {
      ++calls.at(static_cast<std::size_t>(call));
      if (power_left != kNever && (power_left == 0 || --power_left == 0)) return EIO;
      if (call != kind || left == kNever || (left > 1 && --left > 0)) return 0;
      ++faults;
      if (once) left = kNever;
      return error;
    }
    void change(const Change& change) {
      take_name(change.from);
      take_name(change.to);
      apply(names, change);
      if (change.node != nullptr) give_name(*change.node);
      unsynced.push_back(change);
    }
    void take_name(const std::string& path) {
      const auto found = names.find(path);
      if (found == names.end() || !std::exchange(found->second->named, false)) return;
      held -= found->second->bytes.size();
    }
    void give_name(Node& node) {
      if (!std::exchange(node.named, true)) held += node.bytes.size();
    }
    void count_again() {
      held = 0;
      for (const auto& [path, node] : names) node->named = false;
      for (const auto& [path, node] : names) give_name(*node);
    }
    std::uint64_t bytes() const { return held; }
  };

  class OpenFile final : public File {
   public:
    OpenFile(std::shared_ptr<Disk> disk, std::shared_ptr<Node> node) : disk_(std::move(disk)), node_(std::move(node)) {}

    int write_all(std::span<const std::byte> bytes) override {
      const testing::AllocationsOfTest mine;
      const std::lock_guard lock(disk_->mutex);
      const int error = disk_->fault(Call::kWrite);
      const auto whole = bytes.begin() + static_cast<std::ptrdiff_t>(error == 0 ? bytes.size() : bytes.size() / 2);
      const std::size_t before = node_->bytes.size();
      if (disk_->power_left != 0) node_->bytes.insert(node_->bytes.end(), bytes.begin(), whole);
      if (node_->named) disk_->held += node_->bytes.size() - before;
      node_->written = ++disk_->clock;
      disk_->peak = std::max(disk_->peak, disk_->bytes());
      return error;
    }
    int read_at(std::uint64_t offset, std::span<std::byte> into) override {
      const std::lock_guard lock(disk_->mutex);
      if (const int error = disk_->fault(Call::kRead)) return error;
      if (offset > node_->bytes.size() || into.size() > node_->bytes.size() - offset) return EIO;
      std::copy_n(node_->bytes.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
      return 0;
    }
    int info(FileInfo& info) override {
      const std::lock_guard lock(disk_->mutex);
      info = node_->info();
      return disk_->fault(Call::kInfo);
    }
    int sync() override {
      const std::lock_guard lock(disk_->mutex);
      if (const int error = disk_->fault(Call::kSync)) return error;
      node_->synced = node_->bytes.size();
      return 0;
    }
    int close() override {
      const std::lock_guard lock(disk_->mutex);
      return disk_->fault(Call::kClose);
    }

   private:
    std::shared_ptr<Disk> disk_;
    std::shared_ptr<Node> node_;
  };

  // A lock of an earlier life of the machine lets go of nothing.
  class HeldLock final : public File {
   public:
    HeldLock(std::shared_ptr<Disk> disk, std::string path, std::uint64_t life)
        : disk_(std::move(disk)), path_(std::move(path)), life_(life) {}
    ~HeldLock() override { HeldLock::close(); }
    int write_all(std::span<const std::byte>) override { return EBADF; }
    int read_at(std::uint64_t, std::span<std::byte>) override { return EBADF; }
    int info(FileInfo&) override { return EBADF; }
    int sync() override { return EBADF; }
    int close() override {
      const std::lock_guard lock(disk_->mutex);
      if (disk_->lives == life_) disk_->locks.erase(path_);
      return 0;
    }

   private:
    std::shared_ptr<Disk> disk_;
    std::string path_;
    std::uint64_t life_;
  };

  // What is left of bytes that were not synced: any number of them, and of these some from elsewhere.
  static void damage(Node& node, std::mt19937_64& random) {
    const std::size_t unsynced = node.bytes.size() - node.synced;
    node.bytes.resize(node.synced + random() % (unsynced + 1));
    const bool shuffled = random() % 2 == 0;
    for (std::size_t i = node.synced; shuffled && i < node.bytes.size(); ++i) {
      if (random() % 8 == 0) node.bytes[i] = static_cast<std::byte>(random());
    }
  }

  void crash(std::mt19937_64* random) {
    const std::lock_guard lock(disk_->mutex);
    for (const auto& [path, node] : disk_->names) node->named = false;
    disk_->names = disk_->durable_names;
    for (const Change& change : disk_->unsynced) {
      if (random != nullptr && (*random)() % 2 == 0) apply(disk_->names, change);
    }
    for (auto& [path, node] : disk_->names) {
      if (random != nullptr) damage(*node, *random);
      node->bytes.resize(random != nullptr ? node->bytes.size() : node->synced);
      node->synced = node->bytes.size();
    }
    disk_->durable_names = disk_->names;
    disk_->count_again();
    disk_->unsynced.clear();
    disk_->locks.clear();
    disk_->left = disk_->power_left = kNever;
    ++disk_->lives;
  }

  const std::shared_ptr<Disk> disk_ = std::make_shared<Disk>();
};

}  // namespace kvtrie::test
