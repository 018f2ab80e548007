#include "store/disk_tier.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "store/disk_names.h"
#include "store/sealed_content.h"

namespace kvtrie {
namespace {

constexpr const char* kWhere = "disk";

std::string text_of(int error) { return std::generic_category().message(error); }

std::string sentence(const char* step, int error) { return cat(step, " failed: ", text_of(error)); }

void warn(const std::string& folder, const std::string& what) {
  log_message(LogLevel::kWarning, cat("[", kWhere, "] ", folder, ": ", what));
}

[[noreturn]] void fail_unusable(const std::string& folder, const char* step, int error) {
  fail(ErrorKind::kFormat, kWhere, "disk: got ", folder, " (", step, ": ", text_of(error),
       "), allowed a usable folder");
}

}  // namespace

// ---- opening and closing --------------------------------------------------------------------------------------------

DiskTier::DiskTier(DiskOptions options, std::shared_ptr<FileSystem> files)
    : options_(std::move(options)), files_(std::move(files)), budget_(options_.cap_bytes) {
  counts_.refused.resize(kSnapshotFaults);
}

std::shared_ptr<DiskTier> DiskTier::open(DiskOptions options, std::shared_ptr<FileSystem> files) {
  require(!options.folder.empty(), kWhere, "disk: got an empty path, allowed the path of a folder");
  require(!options.fingerprint.empty(), kWhere, "fingerprint: got an empty one, allowed a text that names the model");
  std::shared_ptr<DiskTier> tier(new DiskTier(std::move(options), std::move(files)));
  tier->enter();
  return tier;
}

void DiskTier::enter() {
  FolderAccess access = FolderAccess::kOwn;
  if (const int error = files_->make_folder(folder(), access)) fail_unusable(folder(), "make folder", error);
  if (access == FolderAccess::kOthersMayWrite) {
    fail(ErrorKind::kFormat, kWhere, "disk: got ", folder(),
         ", in which other users may write, allowed a folder of our own with mode 0700");
  }
  int error = files_->hold_folder(folder(), held_folder_);
  if (error == 0) error = files_->lock(path_of(kLockName), lock_);
  if (error != 0) {
    if (error != EWOULDBLOCK) fail_unusable(folder(), "lock", error);
    fail(ErrorKind::kBusy, kWhere, "disk: got ", folder(), ", which another cache holds open, allowed one at a time");
  }
  if (access == FolderAccess::kOthersMayLook)
    warn(folder(), "other users may look into this folder, and files in it hold prompts; use mode 0700");
  for (const std::string& name : list_names()) {
    if (!is_temporary_name(name) || !remove_now(name)) continue;
    const MutexLock lock(mutex_);
    ++counts_.strays_removed;
  }
}

std::vector<std::string> DiskTier::list_names() {
  std::vector<std::string> names;
  if (const int error = files_->list(folder(), names)) fail_unusable(folder(), "list", error);
  std::sort(names.begin(), names.end());
  return names;
}

// No DiskFile is left: each of them holds the tier.
DiskTier::~DiskTier() {
  {
    const MutexLock lock(mutex_);
    doom_again();
  }
  sweep();
}

std::uint64_t DiskTier::next_id() noexcept {
  const MutexLock lock(mutex_);
  return ++last_id_;
}

bool DiskTier::takes(std::string_view name_space) const noexcept {
  return options_.keys == nullptr || options_.keys->has(name_space);
}

std::uint64_t DiskTier::file_bytes(std::uint64_t content) const noexcept {
  return options_.keys == nullptr || content == 0 ? content : SealedLayout{content}.total();
}

bool DiskTier::reserve(std::uint64_t content) noexcept {
  const std::uint64_t bytes = file_bytes(content);
  if (budget_.reserve(bytes)) return true;
  if (doomed_bytes() == 0) return false;
  sweep();
  return budget_.reserve(bytes);
}

bool DiskTier::writing() const noexcept {
  const MutexLock lock(mutex_);
  return counts_.writing;
}

void DiskTier::try_again() noexcept {
  const MutexLock lock(mutex_);
  doom_again();
  if (counts_.writing) return;
  counts_.writing = true;
  failures_in_a_row_ = kFailuresInARow - 1;
}

// ---- going ----------------------------------------------------------------------------------------------------------

void DiskTier::keep_files() noexcept {
  const MutexLock lock(mutex_);
  keep_ = true;
}

void DiskTier::doom(DiskFile& file, bool always) noexcept {
  const MutexLock lock(mutex_);
  file.live_ = false;
  if (!always && keep_) return;
  count_going(file.self_.front(), Going::kNot, Going::kDoomed);
  doomed_.splice(doomed_.end(), file.self_);
}

bool DiskTier::has_name(const DoomedFile& file) const noexcept {
  const auto owner = owners_.find(file.name);
  return owner != owners_.end() && owner->second.id == file.id;
}

void DiskTier::count_going(const DoomedFile& file, Going from, Going to) noexcept {
  if (file.id != 0 && !has_name(file)) return;
  if (from != Going::kNot) going_bytes(from) -= file.bytes;
  if (to != Going::kNot) going_bytes(to) += file.bytes;
  if (file.id != 0) owners_.find(file.name)->second.going = to;
}

std::uint64_t DiskTier::doomed_bytes() const noexcept {
  const MutexLock lock(mutex_);
  return doomed_bytes_;
}

std::uint64_t DiskTier::kept_bytes() const noexcept {
  const MutexLock lock(mutex_);
  return budget_.used() - doomed_bytes_;
}

std::uint64_t DiskTier::live_bytes() const noexcept {
  const MutexLock lock(mutex_);
  return budget_.used() - doomed_bytes_ - resisting_bytes_;
}

bool DiskTier::needs_sweep() const noexcept {
  const MutexLock lock(mutex_);
  return !doomed_.empty();
}

void DiskTier::sweep() noexcept {
  const MutexLock folder_lock(folder_mutex_);
  {
    const MutexLock lock(mutex_);
    sweeping_.splice(sweeping_.end(), doomed_);
  }
  while (sweep_front()) {
  }
}

// With folder_mutex_ held, a name that belongs to the file now still does when it is removed, and nobody else takes the
// file from the list. It stays there until its bytes are released: every look counts it once. False: there is none.
bool DiskTier::sweep_front() noexcept {
  const DoomedFile* file = nullptr;
  {
    const MutexLock lock(mutex_);
    if (sweeping_.empty()) return false;
    file = &sweeping_.front();
  }
  if (file->id != 0) {
    open_files_.forget(file->id);
    const MutexLock lock(mutex_);
    if (!has_name(*file)) {
      sweeping_.pop_front();
      return true;
    }
  }
  int error = folder_fault();
  if (error == 0) error = files_->remove(file->path);
  if (error != 0 && error != ENOENT) {
    {
      const MutexLock lock(mutex_);
      resist(sweeping_, Going::kDoomed);
    }
    note_failure({"remove", error});
    return true;
  }
  const MutexLock lock(mutex_);
  count_going(*file, Going::kDoomed, Going::kNot);
  if (file->id != 0) owners_.erase(file->name);
  budget_.release(file->bytes);
  sweeping_.pop_front();
  return true;
}

// The first file of a list could not be removed. Not tried again at once: on a disk that takes no change, every call
// would try all of them.
void DiskTier::resist(std::list<DoomedFile>& from, Going were) noexcept {
  ++counts_.failed_removes;
  count_going(from.front(), were, Going::kResisting);
  resisting_.splice(resisting_.end(), from, from.begin());
}

void DiskTier::note_resisting(std::list<DoomedFile>& file, int error) noexcept {
  {
    const MutexLock lock(mutex_);
    resist(file, Going::kNot);
  }
  note_failure({"remove", error});
}

void DiskTier::doom_again() noexcept {
  for (const DoomedFile& file : resisting_) count_going(file, Going::kResisting, Going::kDoomed);
  doomed_.splice(doomed_.end(), resisting_);
}

// For what is not counted: strays, damaged files, and what scan found beyond the cap.
bool DiskTier::remove_now(const std::string& name) {
  std::list<DoomedFile> file;
  file.push_back({name, path_of(name), 0, 0});
  const int error = files_->remove(file.front().path);
  if (error != 0 && error != ENOENT) note_resisting(file, error);
  return error == 0;
}

int DiskTier::folder_fault() noexcept {
  return held_folder_ == nullptr ? 0 : files_->same_folder(folder(), *held_folder_);
}

// ---- reading --------------------------------------------------------------------------------------------------------

DiskFile::DiskFile(std::shared_ptr<DiskTier> tier, std::string name, std::uint64_t bytes) : tier_(std::move(tier)) {
  std::string path = tier_->path_of(name);
  self_.push_back({std::move(name), std::move(path), bytes, tier_->next_id()});
}

DiskFile::~DiskFile() {
  if (live_) tier_->doom(*this, false);
}

bool DiskFile::read(std::uint64_t offset, std::span<std::byte> into) { return tier_->read(*this, offset, into); }

bool DiskTier::read(const DiskFile& file, std::uint64_t offset, std::span<std::byte> into) {
  int error = 0;
  try {
    if (offset > file.content_bytes() || into.size() > file.content_bytes() - offset) {
      error = EINVAL;
    } else if (const std::shared_ptr<File> source = opened(file, error)) {
      error = source->read_at(offset, into);
    }
  } catch (const std::bad_alloc&) {
    note_read(0, ENOMEM);
    throw;
  } catch (const std::exception&) {
    error = EIO;
  }
  if (error == ENOMEM) {  // says nothing of what is in the file
    note_read(0, error);
    throw std::bad_alloc();
  }
  if (error != 0) open_files_.forget(file.self_.front().id);
  note_read(into.size(), error);
  return error == 0;
}

// ESTALE: under the name is another file than the one that was written or found.
std::shared_ptr<File> DiskTier::opened(const DiskFile& file, int& error) {
  const DoomedFile& self = file.self_.front();
  if (std::shared_ptr<File> found = open_files_.find(self.id)) return found;
  std::unique_ptr<File> source;
  FileInfo info;
  error = files_->open(self.path, source, info);
  if (error == EMFILE || error == ENFILE) {
    open_files_.forget_all();
    error = files_->open(self.path, source, info);
  }
  if (error == 0 && (!info.regular || info.bytes != self.bytes || info.identity != file.identity_)) error = ESTALE;
  if (error == 0 && options_.keys != nullptr) error = unseal(file, source);
  if (error != 0) return nullptr;
  return open_files_.add(self.id, std::move(source));
}

int DiskTier::unseal(const DiskFile& file, std::unique_ptr<File>& source) const {
  std::unique_ptr<SealedFile> content;
  const SnapshotFault fault = SealedFile::open(std::move(source), file.bytes(), *options_.keys, file.name(), content);
  if (fault != SnapshotFault::kNone) return fault == SnapshotFault::kIo ? EIO : EBADMSG;
  if (content->content_bytes() != file.content_bytes()) return ESTALE;
  source = std::move(content);
  return 0;
}

// ---- what there is to say -------------------------------------------------------------------------------------------

void DiskTier::note(Failure failure) noexcept {
  try {
    {
      const MutexLock lock(mutex_);
      last_failure_ = failure;
      if (!logged_.emplace(failure.step, failure.error).second) return;
    }
    warn(folder(), sentence(failure.step, failure.error));
  } catch (const std::exception&) {  // no memory for the message: `stats` says it
  }
}

void DiskTier::note_written(std::uint64_t bytes) noexcept {
  const MutexLock lock(mutex_);
  ++counts_.writes;
  counts_.written_bytes += bytes;
  failures_in_a_row_ = 0;
  off_logged_ = false;
  doom_again();
}

void DiskTier::note_failed_write(Failure failure) noexcept {
  {
    const MutexLock lock(mutex_);
    ++counts_.failed_writes;
  }
  note_failure(failure);
}

void DiskTier::note_failure(Failure failure) noexcept {
  bool off = false;
  {
    const MutexLock lock(mutex_);
    if (failure.error != ENOMEM && ++failures_in_a_row_ >= kFailuresInARow) {
      counts_.writing = false;
      off = !std::exchange(off_logged_, true);
    }
  }
  note(failure);
  if (!off) return;
  try {
    warn(folder(), cat("writing is switched off after ", kFailuresInARow, " failures in a row"));
  } catch (const std::exception&) {  // no memory for the message: `writing` says it
  }
}

void DiskTier::note_read(std::uint64_t bytes, int error) noexcept {
  {
    const MutexLock lock(mutex_);
    ++counts_.reads;
    if (error == 0) {
      counts_.read_bytes += bytes;
      return;
    }
    ++counts_.failed_reads;
  }
  note({"read", error});
}

DiskStats DiskTier::stats() const {
  const std::uint64_t doomed = doomed_bytes();
  const MutexLock lock(mutex_);
  DiskStats stats = counts_;
  if (last_failure_) stats.last_failure = sentence(last_failure_.step, last_failure_.error);
  stats.files = owners_.size();
  stats.bytes = budget_.used();
  stats.doomed_bytes = doomed;
  stats.cap_bytes = budget_.cap();
  stats.peak_bytes = budget_.peak();
  return stats;
}

}  // namespace kvtrie
