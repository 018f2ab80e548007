// A folder full of what may lie there: snapshots that are right, damaged ones, any bytes under any name, files of
// others; looked into, opened by a disk tier whose file system fails once, scanned, read, written to and opened again.
//
// Holds to: nothing throws but kFormat and kBusy where a call of the file system failed; what is read is what was
// written, or nothing; a right snapshot of our model is found while no call fails; files of others and of other models
// stay; the cap holds; no temporary file is left behind. And names are told apart as their grammar says.
//
// Input: [1: cap][1: call that fails][1: how many calls before][1: error], then files: [1: kind] and what it takes.
#include <cerrno>
#include <map>
#include <string_view>

#include "disk_helpers.h"
#include "faulty_file_system.h"
#include "fuzz_bytes.h"
#include "naive_snapshot.h"
#include "store/disk_inspect.h"

namespace kvtrie::fuzz {
namespace {

using test::Call;
using test::Entry;

constexpr const char* kFolder = "/f";

bool digits(std::string_view text, std::string_view allowed) {
  return text.find_first_not_of(allowed) == std::string_view::npos;
}

// A second reading of the grammar in store/disk_names.h.
bool looks_like_snapshot(std::string_view name) {
  return name.size() == 80 && digits(name.substr(0, 64), "0123456789abcdef") && name[64] == '.' &&
         digits(name.substr(65, 8), "0123456789abcdef") && name.substr(73) == ".kvtrie";
}

bool looks_like_temporary(std::string_view name) {
  return name.size() > 85 && name.substr(0, 4) == "tmp-" && looks_like_snapshot(name.substr(4, 80)) &&
         name[84] == '.' && digits(name.substr(85), "0123456789");
}

void expect_names(const std::string& name) {
  expect(is_snapshot_name(name) == looks_like_snapshot(name), "a snapshot's name or not: ", name);
  expect(is_temporary_name(name) == looks_like_temporary(name), "a temporary name or not: ", name);
}

class Folder {
 public:
  explicit Folder(Input input) : from_(input) {}

  void play() {
    cap_ = from_.pick<std::uint64_t>({1 << 20, 0, 700, 2000});
    const auto call = static_cast<Call>(from_.below(static_cast<std::size_t>(Call::kCount) + 1));
    const std::uint64_t before = 1 + from_.below(12);
    const int error = from_.pick({EIO, ENOSPC, EACCES, ENOENT, ELOOP});
    while (!from_.empty() && files_ < 8) put_file();
    look();
    faults_ = call != Call::kCount;
    if (faults_) system_->fail(call, before, error, from_.flag());
    open();
    system_->heal();
    faults_ = false;
    open();
    expect_strangers();
  }

 private:
  void put_file() {
    ++files_;
    switch (from_.below(6)) {
      case 0:
      case 1:
        return put_entry(false);
      case 2:
        return put_entry(true);
      case 3:
        return put_framed();
      case 4:
        return put_temporary();
      default: {
        const std::string name = from_.text(from_.below(100));
        expect_names(name);
        put(name, copy_of(from_.take(from_.below(300))));
      }
    }
  }

  Entry entry() {
    const auto start = static_cast<std::int32_t>(from_.below(3));
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(start) + 1 + from_.below(6));
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(from_.below(4));
    return test::entry_of(
        std::move(tokens), from_.below(4),
        {from_.pick({"model-a", "model-a", "model-b"}), from_.pick({"default", ""}), start, 40 * (1 + from_.below(4))});
  }

  void put_entry(bool damaged) {
    const Entry made = entry();
    expect_names(made.name());
    std::vector<std::byte> bytes = made.file();
    if (damaged) damage(bytes, from_);
    known_.emplace(made.name(), made);
    if (put(made.name(), bytes) && bytes == made.file()) right_.insert(made.name());
  }

  // Right around its fields, and under the name that follows from them; or under another one.
  void put_framed() {
    const std::uint32_t point = from_.number<std::uint8_t>();
    const bool wrong = from_.flag();
    const NaiveSnapshot framed(point, from_.take(from_.below(400)));
    std::vector<std::byte> bytes = framed.bytes();
    if (framed.images() < 4096) bytes.resize(bytes.size() + framed.images());
    const DecodedSnapshot decoded = decode_header(bytes, bytes.size());
    const bool named = decoded.fault == SnapshotFault::kNone && !wrong;
    put(named ? snapshot_name(decoded.header, std::span(bytes).first(decoded.images_begin)) : misnamed(), bytes);
  }
  static std::string misnamed() { return std::string(64, 'a') + ".00000000.kvtrie"; }

  void put_temporary() {
    const std::string name = temporary_name(entry().name(), from_.number<std::uint64_t>());
    expect_names(name);
    put(name, copy_of(from_.take(40)));
  }

  bool put(const std::string& name, const std::vector<std::byte>& bytes) {
    std::unique_ptr<File> file;
    if (system_->create(std::string(kFolder) + "/" + name, file) != 0) return false;
    file->write_all(bytes);
    if (name != kLockName && !is_snapshot_name(name) && !is_temporary_name(name)) strangers_.insert(name);
    return true;
  }

  void look() {
    const InspectedFolder seen = inspect_folder(kFolder, *system_);
    for (const InspectedFile& file : seen.files) {
      expect(file.fault != SnapshotFault::kIo, "a file that can be read was not");
      expect(!right_.contains(file.name) || file.fault == SnapshotFault::kNone,
             "a right snapshot looks wrong: ", name_of(file.fault));
    }
    std::uint64_t looked_at = 0;
    for (const std::string& path : system_->paths())
      looked_at += path == std::string(kFolder) + "/" + kLockName ? 0 : 1;
    expect(seen.files.size() + seen.temporary + seen.others == looked_at, "files were left out");
  }

  void open() {
    try {
      const std::shared_ptr<DiskTier> tier = DiskTier::open({kFolder, cap_, "model-a", std::nullopt}, system_);
      std::vector<FoundSnapshot> found = tier->scan();
      expect_found(*tier, found);
      write_one(*tier);
      if (from_.flag()) {
        for (const FoundSnapshot& snapshot : found) right_.erase(snapshot.file->name());
        found.clear();
      }
      tier->keep_files();
    } catch (const Error& error) {
      expect(faults_ && (error.kind() == ErrorKind::kFormat || error.kind() == ErrorKind::kBusy), error.what());
    }
    for (const std::string& path : system_->paths())
      expect(faults_ || !is_temporary_name(path.substr(path.rfind('/') + 1)), "left behind: ", path);
  }

  void expect_found(const DiskTier& tier, const std::vector<FoundSnapshot>& found) {
    std::set<std::string> names;
    for (const FoundSnapshot& snapshot : found) {
      names.insert(snapshot.file->name());
      expect(snapshot.header.fingerprint == "model-a", "a snapshot of another model");
      expect(snapshot.file->name() != misnamed(), "a file is believed under a name that does not follow from it");
      expect_contents(snapshot);
    }
    const DiskStats stats = tier.stats();
    expect(stats.bytes <= cap_ && stats.peak_bytes <= cap_, "the disk tier is at ", stats.bytes, " of ", cap_);
    const auto lost = [&](const std::string& name) { return !is_foreign(name) && !names.contains(name); };
    expect(faults_ || stats.dropped > 0 || std::none_of(right_.begin(), right_.end(), lost),
           "a right snapshot was not found");
    std::erase_if(right_, lost);
  }

  bool is_foreign(const std::string& name) const { return known_.at(name).header.fingerprint != "model-a"; }

  void expect_contents(const FoundSnapshot& snapshot) {
    const auto known = known_.find(snapshot.file->name());
    if (known == known_.end()) return read_images(snapshot);
    expect(snapshot.header == known->second.header, "another header than was written under this name");
    const test::Bytes read = test::read_verified(snapshot);
    expect(read.empty() || read == known->second.image, "wrong bytes were read");
    expect(!read.empty() || faults_ || !right_.contains(snapshot.file->name()), "a right snapshot could not be read");
  }

  static void read_images(const FoundSnapshot& snapshot) {
    std::uint64_t at = snapshot.images_begin;
    for (const SnapshotImage& image : snapshot.header.images) {
      std::vector<std::uint64_t> checksums;
      std::vector<std::uint32_t> all;
      for (const SnapshotSection& section : image.sections) {
        all.push_back(static_cast<std::uint32_t>(all.size()));
        checksums.push_back(section.checksum);
      }
      std::vector<std::byte> into(image.bytes());
      Blob::in_file(test::sections_of(image), checksums, snapshot.file, at)->read(all, into);
      at += image.bytes();
    }
  }

  void write_one(DiskTier& tier) {
    Entry made = entry();
    made.header.fingerprint = "model-a";
    made.encoded = encode_header(made.header);
    known_.emplace(made.name(), made);
    const DiskFilePtr file = test::write(tier, made);
    if (file == nullptr && faults_) right_.erase(made.name());  // half way: in place of the one that was there
    if (file == nullptr) return expect(faults_ || made.bytes() + tier.stats().bytes > cap_, "not written");
    const test::Bytes read = test::read_all(*file);
    expect(read == made.file() || (faults_ && read.empty()), "what was written cannot be read");
    right_.erase(made.name());  // it goes with `file`
  }

  void expect_strangers() {
    const std::set<std::string> paths = system_->paths();
    for (const std::string& name : strangers_)
      expect(paths.contains(std::string(kFolder) + "/" + name), "a file of others is gone: ", name);
    for (const std::string& name : right_)
      expect(paths.contains(std::string(kFolder) + "/" + name), "a right snapshot is gone");
  }

  Bytes from_;
  std::shared_ptr<test::FaultyFileSystem> system_ = std::make_shared<test::FaultyFileSystem>();
  std::map<std::string, Entry> known_;  // what belongs under a name
  std::set<std::string> right_;         // files that are in the folder as they should
  std::set<std::string> strangers_;
  std::uint64_t cap_ = 0;
  int files_ = 0;
  bool faults_ = false;
};

const Registration registered_disk("store_disk", [](Input input) { Folder(input).play(); });

}  // namespace
}  // namespace kvtrie::fuzz
