// DiskTier::write: a snapshot becomes a file, whole or not at all.
//
//     create tmp-* --> write --> sync --> close --> rename --> sync of the folder
//          +------------+---------+---------+---------+              |
//                  the temporary file goes                  the final name goes
#include <cerrno>
#include <exception>
#include <utility>

#include "base/error.h"
#include "store/disk_names.h"
#include "store/disk_tier.h"
#include "store/sealed_content.h"

namespace kvtrie {

// All that needs memory is here before the folder is touched.
struct DiskTier::Write {
  DiskFilePtr file;
  std::list<DoomedFile> temporary;  // one entry: what dooms the temporary file when it cannot be removed
  Owners::node_type owner;          // of the final name
  std::vector<std::span<const std::byte>> buffers;  // header and images
  std::unique_ptr<BufferSource> plain;              // of `buffers`
  std::unique_ptr<Sealer> sealer;                   // of `plain`; null: it is written as it is
  bool created = false;
};

DiskTier::Write DiskTier::prepare(const SnapshotHeader& identity, std::span<const std::byte> header, Images images,
                                  std::uint64_t content) {
  Write write;
  const std::uint64_t bytes = file_bytes(content);
  std::optional<NamespaceKey> key;
  if (options_.keys != nullptr) key = options_.keys->sealing(identity.name_space);
  write.file =
      DiskFilePtr(new DiskFile(shared_from_this(), snapshot_name(identity, header, key ? &*key : nullptr), bytes));
  write.file->content_bytes_ = content;
  const DoomedFile& self = write.file->self_.front();
  write.buffers.push_back(header);
  write.buffers.insert(write.buffers.end(), images.begin(), images.end());
  write.plain = std::make_unique<BufferSource>(write.buffers, content);
  if (key) write.sealer = std::make_unique<Sealer>(*options_.keys, *key, self.name, *write.plain);
  const std::string temporary = temporary_name(self.name, self.id);
  write.temporary.push_back({temporary, path_of(temporary), bytes, 0});
  Owners owner{{self.name, {self.id, bytes}}};
  write.owner = owner.extract(owner.begin());
  return write;
}

DiskFilePtr DiskTier::write(const SnapshotHeader& identity, std::span<const std::byte> header,
                            std::span<const std::span<const std::byte>> images) noexcept {
  std::uint64_t bytes = header.size();
  for (const auto& image : images) bytes += image.size();
  try {
    if (writing()) {
      Write write = prepare(identity, header, images, bytes);
      return write_now(write);
    }
  } catch (const Error&) {
    note_failed_write({"seal", EIO});
  } catch (const std::exception&) {
    note_failed_write({"prepare", ENOMEM});
  }
  unreserve(bytes);
  return nullptr;
}

void DiskTier::abandon(std::uint64_t content, const char* step, int error) noexcept {
  unreserve(content);
  const MutexLock lock(mutex_);
  ++counts_.failed_writes;
  last_failure_ = {step, error};
}

DiskFilePtr DiskTier::write_now(Write& write) noexcept {
  Failure failure = write_temporary(write);
  if (!failure) failure = publish(write);
  if (!failure) {
    note_written(write.file->bytes());
    return std::move(write.file);
  }
  note_failed_write(failure);
  discard(write);
  return nullptr;
}

DiskTier::Failure DiskTier::write_temporary(Write& write) noexcept {
  if (const int error = folder_fault()) return {"look at the folder", error};
  std::unique_ptr<File> file;
  if (const int error = files_->create(write.temporary.front().path, file)) return {"create", error};
  write.created = true;
  if (const Failure failure = write_content(write, *file)) return failure;
  if (const int error = file->sync()) return {"sync", error};
  FileInfo info;
  if (const int error = file->info(info)) return {"stat", error};
  write.file->identity_ = info.identity;
  if (const int error = file->close()) return {"close", error};
  return {};
}

DiskTier::Failure DiskTier::write_content(Write& write, File& file) noexcept {
  ContentSource* content = write.plain.get();
  if (write.sealer != nullptr) content = write.sealer.get();
  for (std::uint64_t left = content->bytes(); left > 0;) {
    const std::span<const std::byte> taken = content->next(left);
    if (taken.empty()) return {"seal", EIO};
    if (const int error = file.write_all(taken)) return {"write", error};
    left -= taken.size();
  }
  return {};
}

// The folder is synced without a lock: a `reserve` that sweeps waits for no sync.
DiskTier::Failure DiskTier::publish(Write& write) noexcept {
  {
    const MutexLock lock(folder_mutex_);
    const DoomedFile& self = write.file->self_.front();
    if (const int error = files_->rename(write.temporary.front().path, self.path)) return {"rename", error};
    take_name(write);
  }
  if (const int error = files_->sync_folder(folder())) return {"sync of the folder", error};
  return {};
}

// The file has its final name: an older one under it is gone from the folder. Inserting a node allocates nothing.
void DiskTier::take_name(Write& write) noexcept {
  std::uint64_t replaced = 0;
  {
    const MutexLock lock(mutex_);
    const Owner owner = write.owner.mapped();
    const auto placed = owners_.insert(std::move(write.owner));
    if (!placed.inserted) {
      const Owner before = std::exchange(placed.position->second, owner);
      replaced = before.id;
      budget_.release(before.bytes);
      if (before.going != Going::kNot) going_bytes(before.going) -= before.bytes;
    }
    write.file->live_ = true;
  }
  if (replaced != 0) open_files_.forget(replaced);
}

// After a failed sync of the folder nobody knows whether the final name would survive a crash: it goes, too.
void DiskTier::discard(Write& write) noexcept {
  if (write.file->live_) {
    doom(*write.file, true);
    sweep();
    return;
  }
  const DoomedFile& temporary = write.temporary.front();
  const int error = write.created ? files_->remove(temporary.path) : 0;
  if (error == 0 || error == ENOENT) {
    budget_.release(temporary.bytes);
    return;
  }
  note_resisting(write.temporary, error);
}

}  // namespace kvtrie
