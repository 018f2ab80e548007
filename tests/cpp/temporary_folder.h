// A folder of the real file system, gone with all that is in it at the end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace kvtrie::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "kvtrie-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::filesystem::filesystem_error("mkdtemp", path, {});
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string disk() const { return (path_ / "disk").string(); }
  std::filesystem::path file(const std::string& name) const { return path_ / "disk" / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace kvtrie::test
