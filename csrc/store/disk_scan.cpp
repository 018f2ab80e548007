// DiskTier::scan: which files of the folder are believed, and which of them stay under the cap.
#include <algorithm>
#include <cerrno>
#include <functional>
#include <tuple>

#include "base/error.h"
#include "base/log.h"
#include "store/disk_inspect.h"
#include "store/disk_names.h"
#include "store/disk_tier.h"
#include "store/sealed_content.h"

namespace kvtrie {
namespace {

bool is_damage(SnapshotFault fault) noexcept {
  return fault == SnapshotFault::kTruncated || fault == SnapshotFault::kChecksum || fault == SnapshotFault::kSize ||
         fault == SnapshotFault::kMagic;
}

}  // namespace

struct DiskTier::Candidate {
  std::string name;
  FileInfo info;
  std::uint64_t content = 0;  // bytes
  DecodedSnapshot decoded;

  std::size_t length() const noexcept { return decoded.header.tokens.size(); }
};

std::vector<FoundSnapshot> DiskTier::scan() {
  std::vector<Candidate> candidates = examine_all();
  log_refused();
  // An ancestor is shorter than what descends from it, so it stays when that does.
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::make_tuple(a.length(), -a.info.modified, std::cref(a.name)) <
           std::make_tuple(b.length(), -b.info.modified, std::cref(b.name));
  });
  drop_what_does_not_fit(candidates);
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::make_tuple(a.length(), a.decoded.header.start, std::cref(a.name)) <
           std::make_tuple(b.length(), b.decoded.header.start, std::cref(b.name));
  });
  return adopt(std::move(candidates));
}

std::vector<DiskTier::Candidate> DiskTier::examine_all() {
  std::vector<Candidate> candidates;
  for (const std::string& name : list_names()) {
    if (name == kLockName || is_temporary_name(name) || is_owned(name)) continue;
    Candidate candidate;
    const SnapshotFault fault = examine(name, candidate);
    if (fault == SnapshotFault::kNone) {
      candidates.push_back(std::move(candidate));
    } else {
      refuse(name, fault);
    }
  }
  return candidates;
}

bool DiskTier::is_owned(const std::string& name) const {
  const MutexLock lock(mutex_);
  return owners_.contains(name);
}

void DiskTier::refuse(const std::string& name, SnapshotFault fault) {
  {
    const MutexLock lock(mutex_);
    ++counts_.refused.at(static_cast<std::size_t>(fault));
  }
  if (is_damage(fault) && is_snapshot_name(name)) remove_now(name);
}

void DiskTier::log_refused() {
  const std::vector<std::uint64_t> refused = stats().refused;
  for (std::size_t i = 0; i < refused.size(); ++i) {
    if (refused[i] == 0) continue;
    const auto fault = static_cast<SnapshotFault>(i);
    log_message(LogLevel::kWarning, cat("[disk] ", folder(), ": files not used (", name_of(fault), "): ", refused[i],
                                        is_damage(fault) ? "; ours among them are removed" : "; left alone"));
  }
}

SnapshotFault DiskTier::examine(const std::string& name, Candidate& candidate) {
  if (!is_snapshot_name(name)) return SnapshotFault::kMagic;
  std::unique_ptr<File> file;
  candidate.name = name;
  if (const int error = files_->open(path_of(name), file, candidate.info)) return fault_of_open(error);
  if (!candidate.info.regular) return SnapshotFault::kNotRegular;
  if (is_sealed_name(name) != (options_.keys != nullptr)) return SnapshotFault::kSealed;
  if (options_.keys == nullptr) return examine_header(*file, candidate.info.bytes, nullptr, candidate);
  std::unique_ptr<SealedFile> content;
  const SnapshotFault fault = SealedFile::open(std::move(file), candidate.info.bytes, *options_.keys, name, content);
  if (fault != SnapshotFault::kNone) return fault;
  return examine_header(*content, content->content_bytes(), &content->key(), candidate);
}

// `key`: with which it was sealed; null: it was not.
SnapshotFault DiskTier::examine_header(File& file, std::uint64_t content, const NamespaceKey* key,
                                       Candidate& candidate) {
  DecodedSnapshot& decoded = candidate.decoded;
  candidate.content = content;
  std::vector<std::byte> beginning;
  decoded = read_header(file, content, beginning);
  if (decoded.fault != SnapshotFault::kNone) return decoded.fault;
  if (decoded.header.fingerprint != options_.fingerprint) return SnapshotFault::kFingerprint;
  if (const SnapshotFault fault = check_name(decoded, beginning, key, candidate.name); fault != SnapshotFault::kNone)
    return fault;
  const bool fits = !options_.caches || decoded.header.caches == *options_.caches;
  return fits ? SnapshotFault::kNone : SnapshotFault::kLayout;
}

// Reserves for the longest beginning of `candidates` that fits, and removes the rest.
void DiskTier::drop_what_does_not_fit(std::vector<Candidate>& candidates) {
  auto rest = candidates.begin();
  while (rest != candidates.end() && budget_.reserve(rest->info.bytes)) ++rest;
  if (rest == candidates.end()) return;
  const auto dropped = static_cast<std::uint64_t>(candidates.end() - rest);
  for (auto candidate = candidates.end(); candidate != rest;) remove_now((--candidate)->name);  // longest paths first
  candidates.erase(rest, candidates.end());
  log_message(LogLevel::kWarning, cat("[disk] ", folder(), ": snapshots removed to fit under the cap: ", dropped));
  const MutexLock lock(mutex_);
  counts_.dropped += dropped;
}

// A DiskFile becomes live last, when nothing throws any more: else a failure here would doom the files.
std::vector<FoundSnapshot> DiskTier::adopt(std::vector<Candidate> candidates) {
  std::vector<FoundSnapshot> found;
  found.reserve(candidates.size());
  Owners owners;
  for (Candidate& candidate : candidates) {
    const DiskFilePtr file(new DiskFile(shared_from_this(), candidate.name, candidate.info.bytes));
    file->content_bytes_ = candidate.content;
    file->identity_ = candidate.info.identity;
    owners[candidate.name] = {file->self_.front().id, candidate.info.bytes};
    found.push_back(
        {file, std::move(candidate.decoded.header), candidate.decoded.images_begin, candidate.info.modified});
  }
  const MutexLock lock(mutex_);
  owners_.merge(owners);
  for (const FoundSnapshot& snapshot : found) snapshot.file->live_ = true;
  return found;
}

}  // namespace kvtrie
