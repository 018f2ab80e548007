#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "cl/disk_cache.h"
#include "device_test.h"

namespace kvtrie::cl {
namespace {

namespace fs = std::filesystem;

// A new folder under the system's temporary folder, removed at the end.
class ProgramCacheTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) / cat("kvtrie_", info->name(), "_", ::getpid());
    fs::remove_all(folder_);
    set_log_sink([this](LogLevel, const std::string& message) { log_.push_back(message); }, LogLevel::kWarning);
  }
  void TearDown() override {
    set_log_sink({});
    fs::remove_all(folder_);
    DeviceTest::TearDown();
  }

  DevicePtr open() { return Device::open(device().info(), {.cache_folder = folder_.string(), .max_bytes = 0}); }

  // Doubles 1.0 with the probe program of `on`, and puts the program on disk.
  static float doubled(const DevicePtr& on) {
    Buffer y(on, 4);
    float value = 1.0F;
    on->write(y, 0, &value, 4);
    on->launch(on->kernel("probe", "probe_scale", "-DFACTOR=2.0f"), {1, 0, 0}, {1, 0, 0}, y, 0.0F);
    on->read(y, 0, &value, 4);
    on->save_programs();
    return value;
  }

  // Whether a program is compiled from its source when `open` asks for it.
  bool compiles() {
    const DevicePtr device = open();
    arm_fault("clCreateProgramWithSource", 1, -6);
    bool compiled = false;
    try {
      EXPECT_EQ(doubled(device), 2.0F);
    } catch (const Error&) {
      compiled = true;
    }
    disarm_fault();
    return compiled;
  }

  std::vector<fs::path> files() const {
    std::vector<fs::path> list;
    for (const auto& entry : fs::directory_iterator(folder_)) list.push_back(entry.path());
    return list;
  }

  fs::path folder_;
  std::vector<std::string> log_;
};

TEST_F(ProgramCacheTest, BinaryIsKeptAndUsedByTheNextDevice) {
  EXPECT_TRUE(compiles());
  EXPECT_EQ(doubled(open()), 2.0F);
  ASSERT_EQ(files().size(), 1U);
  EXPECT_FALSE(compiles());
  struct stat status {};
  ASSERT_EQ(::stat(folder_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
  EXPECT_TRUE(log_.empty());
}

TEST_F(ProgramCacheTest, OtherOptionsAreAnotherProgram) {
  const DevicePtr device = open();
  doubled(device);
  device->kernel("probe", "probe_scale", "-DFACTOR=3.0f");
  device->save_programs();
  EXPECT_EQ(files().size(), 2U);
  EXPECT_EQ(device->counters().programs, 2U);
}

// PoCL compiles a general form of each kernel for a binary, so that is asked for when there is time.
TEST_F(ProgramCacheTest, OnPoclABinaryWaitsUntilItIsSavedAndIsStoredOnce) {
  const DevicePtr device = open();
  if (device->info().platform != "Portable Computing Language") GTEST_SKIP() << "binaries cost nothing here";
  device->kernel("probe", "probe_scale", "-DFACTOR=2.0f");
  EXPECT_TRUE(files().empty());
  device->save_programs();
  ASSERT_EQ(files().size(), 1U);
  fs::remove(files()[0]);
  device->save_programs();
  EXPECT_TRUE(files().empty());
}

// What kernels/builtins.clh lacks is found in the compiler's own header, and that is told.
TEST_F(ProgramCacheTest, AProgramThatTheCompilerRefusesWithOurDeclarationsIsBuiltWithItsOwn) {
  set_log_sink([this](LogLevel, const std::string& message) { log_.push_back(message); }, LogLevel::kInfo);
  const DevicePtr device = open();
  if (device->info().platform != "Portable Computing Language") GTEST_SKIP() << "no declarations of ours here";
  device->kernel("probe", "probe_scale", "-DFACTOR=2.0f");
  EXPECT_TRUE(log_.empty()) << log_[0];
  device->kernel("probe", "probe_scale", "-DFACTOR=cosh(1.0f)");
  const auto tells = [](const std::string& message) { return contains(message, "own declarations"); };
  EXPECT_EQ(std::count_if(log_.begin(), log_.end(), tells), 1);
}

TEST_F(ProgramCacheTest, ADamagedFileIsBuiltAgainAndReplaced) {
  doubled(open());
  ASSERT_EQ(files().size(), 1U);
  const fs::path path = files()[0];
  const auto size = fs::file_size(path);
  // Header, lengths, key, and value; and the file cut short.
  for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{16}, std::uint64_t{30}, std::uint64_t{60}, size - 1}) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char flipped = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(flipped);
    file.close();
    EXPECT_TRUE(compiles()) << "byte " << at;
    EXPECT_EQ(doubled(open()), 2.0F);
    EXPECT_FALSE(compiles()) << "byte " << at;
  }
  for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{20}, size / 2, size - 1}) {
    fs::resize_file(path, length);
    EXPECT_TRUE(compiles()) << "length " << length;
    EXPECT_EQ(doubled(open()), 2.0F);
  }
  EXPECT_FALSE(log_.empty());
  EXPECT_EQ(files().size(), 1U);  // no temporary file stays
}

TEST_F(ProgramCacheTest, ABinaryTheDriverRefusesIsBuiltAgain) {
  if (device().info().platform == "rusticl")
    GTEST_SKIP() << "Mesa 22.3 ends the process over bytes that it did not make";
  doubled(open());
  const DiskCache disk(folder_.string());
  std::vector<std::byte> junk(100, std::byte{0x5A});
  // A valid file whose value is no binary: take the real key out of it.
  std::ifstream file(files()[0], std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::uint64_t key_bytes = 0;
  std::memcpy(&key_bytes, bytes.data() + 15, sizeof key_bytes);
  disk.store(bytes.substr(15 + 24, key_bytes), junk);
  EXPECT_EQ(doubled(open()), 2.0F);
  EXPECT_FALSE(compiles());
}

TEST_F(ProgramCacheTest, WithoutAFolderNothingIsWritten) {
  const DevicePtr device = Device::open(shared_device()->info(), {});
  EXPECT_EQ(doubled(device), 2.0F);
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_FALSE(DiskCache("").enabled());
}

TEST_F(ProgramCacheTest, AFolderOthersMayWriteIsNotUsed) {
  fs::create_directories(folder_);
  fs::permissions(folder_, fs::perms::all);
  EXPECT_EQ(doubled(open()), 2.0F);
  EXPECT_TRUE(files().empty());
  ASSERT_EQ(log_.size(), 1U);
  EXPECT_TRUE(contains(log_[0], "cache_folder")) << log_[0];
}

TEST_F(ProgramCacheTest, AFolderThatCannotBeMadeIsNotUsed) {
  folder_ = "/proc/no_such_folder/programs";
  EXPECT_EQ(doubled(open()), 2.0F);
  EXPECT_EQ(log_.size(), 1U);
  folder_ = fs::path(::testing::TempDir()) / cat("kvtrie_file_", ::getpid());
  std::ofstream(folder_) << "a file";
  EXPECT_EQ(doubled(open()), 2.0F);
}

TEST_F(ProgramCacheTest, RecordsAreKeptOnDiskAndInMemory) {
  {
    const DevicePtr device = open();
    EXPECT_FALSE(device->load_record("rope f16").has_value());
    device->store_record("rope f16", "ok");
    device->store_record("empty", "");
    EXPECT_EQ(device->load_record("rope f16"), "ok");
  }
  const DevicePtr next = open();
  EXPECT_EQ(next->load_record("rope f16"), "ok");
  EXPECT_EQ(next->load_record("empty"), "");
  next->store_record("rope f16", "failed");
  EXPECT_EQ(open()->load_record("rope f16"), "failed");
  const DevicePtr without = Device::open(shared_device()->info(), {});
  EXPECT_FALSE(without->load_record("rope f16").has_value());
  without->store_record("x", "1");
  EXPECT_EQ(without->load_record("x"), "1");
}

TEST_F(ProgramCacheTest, KeysAreComparedNotTrusted) {
  const DiskCache disk(folder_.string());
  const std::vector<std::byte> value(10, std::byte{7});
  disk.store("one", value);
  ASSERT_TRUE(disk.load("one").has_value());
  fs::rename(disk.path_of("one"), disk.path_of("two"));
  EXPECT_FALSE(disk.load("two").has_value());
  EXPECT_FALSE(disk.load("one").has_value());
  EXPECT_NE(key_of({"a", "bc"}), key_of({"ab", "c"}));
  EXPECT_NE(key_of({"a", ""}), key_of({"", "a"}));
}

}  // namespace
}  // namespace kvtrie::cl
