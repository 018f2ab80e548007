// The disk tier: snapshots in the files of one folder, under a hard byte cap.
//
// Concept. One file is one snapshot (snapshot_format.h), complete or absent: it is written under a temporary name in
// the same folder, synced, renamed, and the folder synced. After a crash at any instruction the folder holds complete
// snapshots and perhaps temporary files, which the next `open` removes. Files are named by SHA-256 of namespace,
// fingerprint and tokens (disk_names.h), and carry all three in full; both must agree.
//
//     folder/lock                     held (flock) while a tier is open, and so is the folder: a second writer is
//                                     refused
//     folder/<64 hex>.<8 hex>.kvtrie  snapshots; the second part tells apart several snapshots that end alike
//     folder/<64 hex>.<8 hex>.sealed  the same, sealed
//     folder/tmp-*                    being written
//
// Keys. A tier with keys writes and believes sealed snapshots only (sealed_content.h); one without, those that are not
// sealed. Sealed files are opened as they are read, so owners see contents; caps count whole files.
//
// Going. When the last `DiskFile` that names a file goes, the file is *doomed*: its name waits in a list, O(1) and
// without a system call, so a `DiskFile` may end under any lock. `sweep` removes what is doomed; a `reserve` that does
// not fit sweeps first, and the tier's end sweeps too. Bytes count until they are gone from the folder: what cannot be
// removed stays counted, and is doomed again after the next write that succeeds, by `try_again` and at the tier's end.
// `keep_files` ends all this: the process ends. The tier never chooses what goes: its owner does. Files of
// others, and those that `scan` leaves alone, do not count.
//
//     write or scan --> [live] --last DiskFile ends--> [doomed] --sweep--> gone, bytes released
//                          +---- the same snapshot is written again: replaced, bytes released at once; reads are false
//
// Another folder. Where the folder was moved, replaced or unmounted, nothing is written to, or removed from, what has
// its name now: that may be another tier's. Its files stay counted; when the folder is back, all goes on.
//
// Failures. A write that fails leaves nothing: the temporary file goes, `write` returns null, the counters and the log
// say why, once for each kind of failure. After `kFailuresInARow` writes or removals that failed, without a good write
// in between, the tier stops writing until its owner calls `try_again`, after which one more failure stops it again;
// want of memory says nothing of the disk, and does not count there. A sync that failed is never repeated on the same
// file. A read that fails is a miss.
//
// Threads: any. `write`, `sweep`, `scan`, a `reserve` that does not fit, `DiskFile::read` and the end of the tier (with
// its last DiskFile) block on the file system: call them under no lock. Units: bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "store/blob.h"
#include "store/byte_budget.h"
#include "store/file_system.h"
#include "store/key_ring.h"
#include "store/open_files.h"
#include "store/snapshot_format.h"

namespace kvtrie {

class DiskTier;

// A name that is to be removed from the folder. `id` is of the DiskFile it was of: when another one has the name by
// now, nothing is removed and nothing released. 0: of none, it goes in any case.
struct DoomedFile {
  std::string name, path;
  std::uint64_t bytes = 0, id = 0;
};

// One complete snapshot. Reads check nothing but that all bytes came, and from the file that was written or found:
// the caller verifies the sections.
class DiskFile final : public BlobSource {
 public:
  ~DiskFile() override;  // dooms the file, unless the tier keeps its files
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;
  // Of its content. False: not all of it came.
  bool read(std::uint64_t offset, std::span<std::byte> into) override;
  std::uint64_t bytes() const noexcept { return self_.front().bytes; }     // of the file
  std::uint64_t content_bytes() const noexcept { return content_bytes_; }  // fewer where it is sealed
  const std::string& name() const noexcept { return self_.front().name; }  // within the folder
  // Is let go of with this. Set once, before others have the file.
  void keep(std::shared_ptr<const BudgetHold> with) noexcept { kept_ = std::move(with); }

 private:
  friend class DiskTier;
  DiskFile(std::shared_ptr<DiskTier> tier, std::string name, std::uint64_t bytes);
  std::shared_ptr<DiskTier> tier_;
  std::shared_ptr<const BudgetHold> kept_;
  std::list<DoomedFile> self_;  // one entry, which moves to the tier's list at the end: no allocation there
  std::uint64_t content_bytes_ = 0;
  FileIdentity identity_;  // set before the file is handed out, like the next
  bool live_ = false;      // the file is in the folder under its name
};
using DiskFilePtr = std::shared_ptr<DiskFile>;

struct DiskOptions {
  std::string folder;  // made when it is missing (its parent must exist), mode 0700
  std::uint64_t cap_bytes = 0;
  std::string fingerprint;  // not empty
  // Of the caches that the snapshots have to be of, exactly; none: of any.
  std::optional<std::vector<SnapshotCache>> caches = std::nullopt;
  KeyRingPtr keys = nullptr;  // null: nothing is sealed
};

struct DiskStats {
  std::uint64_t files = 0;  // complete snapshots, doomed ones included
  std::uint64_t bytes = 0;  // what counts under the cap: files and reservations
  std::uint64_t doomed_bytes = 0, cap_bytes = 0, peak_bytes = 0;
  std::uint64_t writes = 0, written_bytes = 0, failed_writes = 0, reads = 0, read_bytes = 0, failed_reads = 0;
  std::uint64_t failed_removes = 0;
  std::vector<std::uint64_t> refused;  // at opening, by SnapshotFault; names that are not ours count as kMagic
  std::uint64_t dropped = 0;           // at opening, complete ones that did not fit under the cap
  std::uint64_t strays_removed = 0;    // temporary files of an earlier process
  bool writing = true;                 // false: switched off after failures
  std::string last_failure;            // one sentence; empty when nothing ever failed
};

// A snapshot that was found when the folder was opened.
struct FoundSnapshot {
  DiskFilePtr file;
  SnapshotHeader header;
  std::uint64_t images_begin = 0;
  double modified = 0;  // seconds since 1970, of the file
};

class DiskTier : public std::enable_shared_from_this<DiskTier> {
 public:
  static constexpr int kFailuresInARow = 3;
  static constexpr std::size_t kOpenFiles = 64;  // at most so many are open for reading

  // Takes the lock and removes temporary files. Throws kBusy when another tier holds the folder, kFormat when it is no
  // folder or cannot be used, kArgument for an empty fingerprint or folder name.
  static std::shared_ptr<DiskTier> open(DiskOptions options, std::shared_ptr<FileSystem> files = real_file_system());
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  // The complete snapshots of this fingerprint, shortest path first, then by `start`. Damaged ones (cut short, wrong
  // checksum, sizes that contradict each other) are removed; those of other models, caches, keys or versions, under
  // names that do not follow from them, sealed ones without keys and the other way round, what cannot be read, and what
  // is no regular file, are left alone; all are counted in `refused` and logged. When the rest is more than the cap,
  // the longest paths go, among equals the least recently modified first. Call once, right after `open`. A result that
  // is let go of dooms its file like any other. Throws kFormat when the folder cannot be listed.
  std::vector<FoundSnapshot> scan();

  // Whether it writes snapshots of this namespace: with keys, if there is one for it.
  bool takes(std::string_view name_space) const noexcept;
  // Of the file that a content of so many bytes becomes.
  std::uint64_t file_bytes(std::uint64_t content) const noexcept;
  // Room for a snapshot whose content has so many bytes, header included; false when it does not fit under the cap,
  // also after a sweep. A reservation is used up by `write` or given back by `unreserve`, for the same number.
  [[nodiscard]] bool reserve(std::uint64_t content) noexcept;
  void unreserve(std::uint64_t content) noexcept { budget_.release(file_bytes(content)); }

  // Writes one snapshot; `header` is what encode_header gave for `identity`, `images` follow it in order. REQUIRES: as
  // many bytes were reserved, and it takes this namespace. Null when it failed or the tier does not write: nothing that
  // counts as a snapshot is left in the folder, and the reservation is given back (of what could not be removed, once a
  // sweep did).
  DiskFilePtr write(const SnapshotHeader& identity, std::span<const std::byte> header,
                    std::span<const std::span<const std::byte>> images) noexcept;
  // In place of `write`, of what its owner cannot write after all: gives the reservation back, and counts it among the
  // failed writes with the step (of static storage) that failed and an errno.
  void abandon(std::uint64_t content, const char* step, int error) noexcept;
  bool writing() const noexcept;  // false: switched off after failures
  void try_again() noexcept;      // switches writing on again, dooms again what could not be removed
  // Removes doomed files; waits for a sweep that another thread began.
  void sweep() noexcept KVTRIE_EXCLUDES(folder_mutex_, mutex_);
  void keep_files() noexcept;         // from now on files stay, and count, when their DiskFile goes
  bool needs_sweep() const noexcept;  // something is doomed, and no sweep took it up
  // The bytes under the cap, each at one moment, whatever sweeps and writes are under way:
  std::uint64_t doomed_bytes() const noexcept;  // what a sweep is to release, or is releasing
  std::uint64_t kept_bytes() const noexcept;    // the rest
  std::uint64_t live_bytes() const noexcept;    // of that, without what could not be removed: files and reservations

  ByteBudget& budget() noexcept { return budget_; }
  const std::string& folder() const noexcept { return options_.folder; }
  DiskStats stats() const;

 private:
  friend class DiskFile;
  struct Failure {
    const char* step = nullptr;  // null: none
    int error = 0;
    explicit operator bool() const noexcept { return step != nullptr; }
  };
  enum class Going : std::uint8_t { kNot, kDoomed, kResisting };  // kDoomed: in a sweep, too
  struct Owner {
    std::uint64_t id = 0, bytes = 0;
    Going going = Going::kNot;
  };
  using Owners = std::map<std::string, Owner>;
  using Images = std::span<const std::span<const std::byte>>;
  struct Write;      // one that is under way (disk_write.cpp)
  struct Candidate;  // a file that scan believes (disk_scan.cpp)

  explicit DiskTier(DiskOptions options, std::shared_ptr<FileSystem> files);
  std::string path_of(const std::string& name) const { return options_.folder + "/" + name; }
  std::uint64_t next_id() noexcept;
  void enter();
  std::vector<std::string> list_names();

  Write prepare(const SnapshotHeader& identity, std::span<const std::byte> header, Images images, std::uint64_t bytes);
  DiskFilePtr write_now(Write& write) noexcept;
  Failure write_temporary(Write& write) noexcept;
  static Failure write_content(Write& write, File& file) noexcept;
  Failure publish(Write& write) noexcept;
  void take_name(Write& write) noexcept KVTRIE_REQUIRES(folder_mutex_);
  void discard(Write& write) noexcept;

  void doom(DiskFile& file, bool always) noexcept KVTRIE_EXCLUDES(mutex_);
  bool has_name(const DoomedFile& file) const noexcept KVTRIE_REQUIRES(mutex_);
  // The count of files that go: those whose name is still theirs, or that have no owner.
  void count_going(const DoomedFile& file, Going from, Going to) noexcept KVTRIE_REQUIRES(mutex_);
  std::uint64_t& going_bytes(Going going) noexcept KVTRIE_REQUIRES(mutex_) {
    return going == Going::kDoomed ? doomed_bytes_ : resisting_bytes_;
  }
  bool sweep_front() noexcept KVTRIE_REQUIRES(folder_mutex_) KVTRIE_EXCLUDES(mutex_);
  void resist(std::list<DoomedFile>& from, Going were) noexcept KVTRIE_REQUIRES(mutex_);
  void note_resisting(std::list<DoomedFile>& file, int error) noexcept KVTRIE_EXCLUDES(mutex_);
  bool remove_now(const std::string& name);
  int folder_fault() noexcept;  // FileSystem::same_folder, of the folder that this tier holds
  bool read(const DiskFile& file, std::uint64_t offset, std::span<std::byte> into);
  std::shared_ptr<File> opened(const DiskFile& file, int& error);
  int unseal(const DiskFile& file, std::unique_ptr<File>& source) const;

  std::vector<Candidate> examine_all();
  SnapshotFault examine(const std::string& name, Candidate& candidate);
  SnapshotFault examine_header(File& file, std::uint64_t content, const NamespaceKey* key, Candidate& candidate);
  void refuse(const std::string& name, SnapshotFault fault);
  void log_refused();
  bool is_owned(const std::string& name) const;
  void drop_what_does_not_fit(std::vector<Candidate>& candidates);
  std::vector<FoundSnapshot> adopt(std::vector<Candidate> candidates);

  void doom_again() noexcept KVTRIE_REQUIRES(mutex_);

  void note(Failure failure) noexcept KVTRIE_EXCLUDES(mutex_);
  void note_written(std::uint64_t bytes) noexcept;
  void note_failed_write(Failure failure) noexcept;
  void note_failure(Failure failure) noexcept KVTRIE_EXCLUDES(mutex_);
  void note_read(std::uint64_t bytes, int error) noexcept;

  const DiskOptions options_;
  const std::shared_ptr<FileSystem> files_;
  ByteBudget budget_;
  std::unique_ptr<File> lock_;
  std::unique_ptr<File> held_folder_;  // the folder itself, for when somebody deletes the lock; null where it cannot be
  OpenFiles open_files_{kOpenFiles};
  mutable Mutex mutex_;                                // no file is touched while it is held
  Mutex folder_mutex_ KVTRIE_ACQUIRED_BEFORE(mutex_);  // held while final names come and go
  Owners owners_ KVTRIE_GUARDED_BY(mutex_);            // by name: the DiskFile whose file is in the folder
  std::list<DoomedFile> doomed_ KVTRIE_GUARDED_BY(mutex_);
  std::list<DoomedFile> sweeping_ KVTRIE_GUARDED_BY(mutex_);                // a sweep under way took them up
  std::list<DoomedFile> resisting_ KVTRIE_GUARDED_BY(mutex_);               // could not be removed
  std::uint64_t doomed_bytes_ KVTRIE_GUARDED_BY(mutex_) = 0;                // of the first two, as count_going says,
  std::uint64_t resisting_bytes_ KVTRIE_GUARDED_BY(mutex_) = 0;             // and of the third
  std::set<std::pair<std::string, int>> logged_ KVTRIE_GUARDED_BY(mutex_);  // kinds of failure: step, errno
  DiskStats counts_ KVTRIE_GUARDED_BY(mutex_);                              // without what other members know
  std::uint64_t last_id_ KVTRIE_GUARDED_BY(mutex_) = 0;
  Failure last_failure_ KVTRIE_GUARDED_BY(mutex_);  // put into words by a caller that has memory for them
  int failures_in_a_row_ KVTRIE_GUARDED_BY(mutex_) = 0;
  bool keep_ KVTRIE_GUARDED_BY(mutex_) = false;
  bool off_logged_ KVTRIE_GUARDED_BY(mutex_) = false;
};

}  // namespace kvtrie
