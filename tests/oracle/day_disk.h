// The disk of a simulated day: folders in memory that fill up, fail, are slow, lose power and get damaged.
//
// Each folder is a FaultyFileSystem (tests/cpp), which knows what was synced; this adds a size in common, odds with
// which calls fail, a moment from which nothing has an effect, bits that flip, and a cap to watch for each folder.
//
// Threads: one at a time; the queue of a cache works only while its owner waits for it (background_queue.h).
#pragma once

#include <cerrno>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "day_numbers.h"
#include "failing_allocations.h"
#include "faulty_file_system.h"
#include "store/blob.h"
#include "store/file_system.h"

namespace kvtrie::oracle::day {

class DayDisk final : public FileSystem {
 public:
  static constexpr std::uint64_t kNoEnd = std::numeric_limits<std::uint64_t>::max();

  DayDisk(std::uint64_t seed, std::function<void(double)> pass) : random_(seed), pass_(std::move(pass)) {}

  // --- what happens to it
  void set_room(std::uint64_t bytes) { room_ = bytes; }         // of all folders
  void set_odds(double odds) { odds_ = odds; }                  // that a call fails
  void set_seconds(double each_call) { seconds_ = each_call; }  // that a call takes
  void go_dark_after(std::uint64_t calls) { calls_left_ = calls; }
  bool is_well() const { return odds_ == 0 && room_ == kNoEnd && calls_left_ == kNoEnd; }
  bool is_dark() const { return calls_left_ == 0; }
  // The machine was off: what was not synced may be there, in part, or not.
  void come_back() {
    for (auto& [path, folder] : folders_) folder->crash(random_.engine());
    calls_left_ = kNoEnd;
  }
  // One bit of a file, or all from some byte on. False: there is no file.
  bool damage() {
    std::vector<std::pair<std::string, test::FaultyFileSystem*>> files;
    for (auto& [path, folder] : folders_) {
      for (const std::string& name : folder->paths()) {
        if (name.ends_with(".kvtrie")) files.emplace_back(name, folder.get());
      }
    }
    if (files.empty()) return false;
    const auto& [path, folder] = files[random_.below(files.size())];
    std::unique_ptr<File> file;
    FileInfo info;
    if (folder->open(path, file, info) != 0 || info.bytes == 0) return false;
    Damage& damage = damaged_[{folder, info.identity.inode}];
    damage.at = random_.below(info.bytes);
    damage.cut = random_.chance(0.3);
    damage.flip = static_cast<std::byte>(1u << random_.below(8));
    damaged_names.insert(name_of(path));
    return true;
  }
  // A byte in memory that is not what it was: what is written of it is a damaged file.
  void taint(const HostMemoryPtr& memory, const std::byte* at) { tainted_.emplace_back(memory, at); }

  // --- what there is
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [path, folder] : folders_) sum += folder->bytes();
    return sum;
  }
  std::uint64_t bytes_in(const std::string& folder) { return at(folder).bytes(); }
  std::size_t open_files() const { return *open_; }
  std::size_t temporary_files_in(const std::string& folder) {
    std::size_t count = 0;
    for (const std::string& name : at(folder).paths()) count += name.find("/tmp-") != std::string::npos;
    return count;
  }
  std::set<std::string> names_in(const std::string& folder) {
    std::set<std::string> names;
    for (const std::string& path : at(folder).paths()) names.insert(name_of(path));
    return names;
  }
  // From now on a folder may hold so many bytes at any moment; what was more is in `excess`.
  void watch(const std::string& folder, std::uint64_t most) { most_[folder] = most; }
  std::string excess;                   // empty: nothing ever was
  std::set<std::string> damaged_names;  // of files, within their folders: they may be misses from now on

  // --- file_system.h
  int make_folder(const std::string& path, FolderAccess& access) override {
    const testing::AllocationsOfTest mine;
    if (const int error = fault()) return error;
    return at(path).make_folder(path, access);
  }
  int list(const std::string& folder, std::vector<std::string>& names) override {
    const testing::AllocationsOfTest mine;
    if (const int error = fault()) return error;
    return at(folder).list(folder, names);
  }
  int create(const std::string& path, std::unique_ptr<File>& file) override {
    const testing::AllocationsOfTest mine;
    if (const int error = fault()) return error;
    std::unique_ptr<File> inner;
    const int error = of(path).create(path, inner);
    if (error == 0) file = wrapped(std::move(inner), path, nullptr);
    return error;
  }
  int open(const std::string& path, std::unique_ptr<File>& file, FileInfo& info) override {
    const testing::AllocationsOfTest mine;
    if (const int error = fault()) return error;
    std::unique_ptr<File> inner;
    if (const int error = of(path).open(path, inner, info)) return error;
    const auto found = damaged_.find({&of(path), info.identity.inode});
    const Damage* damage = found == damaged_.end() ? nullptr : &found->second;
    if (damage != nullptr && damage->cut) info.bytes = std::min(info.bytes, damage->at);
    file = wrapped(std::move(inner), path, damage);
    return 0;
  }
  int rename(const std::string& from, const std::string& to) override {
    const testing::AllocationsOfTest mine;
    if (const int error = fault()) return error;
    if (tainted_paths_.erase(from) > 0) damaged_names.insert(name_of(to));
    return of(from).rename(from, to);
  }
  int remove(const std::string& path) override {
    const testing::AllocationsOfTest mine;
    if (const int error = fault()) return error;
    return of(path).remove(path);
  }
  int sync_folder(const std::string& path) override {
    const testing::AllocationsOfTest mine;
    if (const int error = fault()) return error;
    return at(path).sync_folder(path);
  }
  int lock(const std::string& path, std::unique_ptr<File>& held) override {
    const testing::AllocationsOfTest mine;
    if (const int error = fault()) return error;
    return of(path).lock(path, held);
  }
  int hold_folder(const std::string& path, std::unique_ptr<File>& held) override {
    const testing::AllocationsOfTest mine;
    if (const int error = fault()) return error;
    return at(path).hold_folder(path, held);
  }

 private:
  struct Damage {
    std::uint64_t at = 0;
    bool cut = false;
    std::byte flip{};
  };

  class DayFile final : public File {
   public:
    DayFile(DayDisk& disk, std::unique_ptr<File> inner, std::string path, const Damage* damage)
        : disk_(disk), inner_(std::move(inner)), path_(std::move(path)), open_(disk.open_) {
      if (damage != nullptr) damage_ = *damage;
      ++*open_;
    }
    ~DayFile() override { --*open_; }
    int write_all(std::span<const std::byte> bytes) override {
      const testing::AllocationsOfTest mine;
      if (disk_.is_dark()) return EIO;
      int error = disk_.fault();
      if (disk_.is_dark()) return EIO;
      if (error == 0 && disk_.room_ != kNoEnd && disk_.bytes() + bytes.size() > disk_.room_) error = ENOSPC;
      const int inner = inner_->write_all(error == 0 ? bytes : bytes.first(bytes.size() / 2));
      if (disk_.is_tainted(bytes)) disk_.tainted_paths_.insert(path_);
      disk_.look(folder_of(path_));
      return error != 0 ? error : inner;
    }
    int read_at(std::uint64_t offset, std::span<std::byte> into) override {
      const testing::AllocationsOfTest mine;
      if (const int error = disk_.fault()) return error;
      if (damage_ && damage_->cut && offset + into.size() > damage_->at) return EIO;
      const int error = inner_->read_at(offset, into);
      if (error == 0 && damage_ && damage_->at >= offset && damage_->at - offset < into.size())
        into[damage_->at - offset] ^= damage_->flip;
      return error;
    }
    int info(FileInfo& info) override {
      if (const int error = disk_.fault()) return error;
      const int error = inner_->info(info);
      if (damage_ && damage_->cut) info.bytes = std::min(info.bytes, damage_->at);
      return error;
    }
    int sync() override {
      if (const int error = disk_.fault()) return error;
      return inner_->sync();
    }
    int close() override { return inner_->close(); }

   private:
    DayDisk& disk_;
    std::unique_ptr<File> inner_;
    std::string path_;
    std::optional<Damage> damage_;
    std::shared_ptr<std::size_t> open_;
  };

  std::unique_ptr<File> wrapped(std::unique_ptr<File> inner, const std::string& path, const Damage* damage) {
    return std::make_unique<DayFile>(*this, std::move(inner), path, damage);
  }
  static std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }
  bool is_tainted(std::span<const std::byte> bytes) {
    std::erase_if(tainted_, [](const auto& each) { return each.first.expired(); });
    return std::any_of(tainted_.begin(), tainted_.end(), [&](const auto& each) {
      return !std::less<>()(each.second, bytes.data()) && std::less<>()(each.second, bytes.data() + bytes.size());
    });
  }
  static std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
  test::FaultyFileSystem& at(const std::string& folder) {
    auto& made = folders_[folder];
    if (made == nullptr) made = std::make_unique<test::FaultyFileSystem>();
    return *made;
  }
  test::FaultyFileSystem& of(const std::string& path) { return at(folder_of(path)); }

  int fault() {
    pass_(seconds_);
    if (calls_left_ == 0) return EIO;
    if (calls_left_ != kNoEnd && --calls_left_ == 0) return EIO;
    return odds_ > 0 && random_.chance(odds_) ? EIO : 0;
  }
  void look(const std::string& folder) {
    const auto watched = most_.find(folder);
    if (watched == most_.end() || !excess.empty()) return;
    const std::uint64_t bytes = at(folder).bytes();
    if (bytes > watched->second) excess = cat("the folder held ", bytes, " bytes, allowed ", watched->second);
  }

  Random random_;
  std::function<void(double)> pass_;
  std::map<std::string, std::unique_ptr<test::FaultyFileSystem>> folders_;
  std::map<std::pair<const test::FaultyFileSystem*, std::uint64_t>, Damage> damaged_;  // by number of the file
  std::vector<std::pair<std::weak_ptr<HostMemory>, const std::byte*>> tainted_;
  std::set<std::string> tainted_paths_;  // of temporary files that have such bytes
  std::map<std::string, std::uint64_t> most_;
  std::shared_ptr<std::size_t> open_ = std::make_shared<std::size_t>(0);
  std::uint64_t room_ = kNoEnd, calls_left_ = kNoEnd;
  double odds_ = 0, seconds_ = 0.0005;
};

}  // namespace kvtrie::oracle::day
