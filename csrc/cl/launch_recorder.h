// Listens to what a thread gives a device to do, so that the same launches can be made again (ops/launch_graph.h).
//
// While a recorder listens, launches go to the device as ever and are written down with their arguments. Commands that
// cannot be made again are noted, too: other commands, or a product of CLBlast. So are the bytes of buffers that were
// made from host memory meanwhile, since those differ from step to step.
//
// Threads: a recorder hears the thread that `listen` was called on, until `stop`, which any thread may call; what it
// heard may be read afterwards. Units: bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cl/device.h"

namespace kvtrie::cl {

// Keeps a buffer's memory, whatever becomes of its owner.
class SharedMemory {
 public:
  explicit SharedMemory(_cl_mem* handle);  // retains it
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  SharedMemory& operator=(SharedMemory&&) = delete;
  bool wraps_host() const;  // whether it is memory of the host, in place: that goes when its owner says so

 private:
  _cl_mem* handle_;
};

class LaunchRecorder {
 public:
  struct Word {
    std::uint64_t value = 0;    // a scalar's bytes, zero-extended
    std::size_t bytes = 0;      // of the scalar; 0 of local memory
    _cl_mem* buffer = nullptr;  // or a buffer
  };
  struct Launch {
    std::string program, name, options;  // as Device::kernel takes them
    Range global{}, local{};
    std::vector<Word> arguments;
  };
  struct Upload {
    _cl_mem* buffer = nullptr;
    std::vector<std::byte> bytes;
  };

  // Begins to listen to the calling thread. kBusy when another recorder does already.
  static std::shared_ptr<LaunchRecorder> listen(const DevicePtr& device);
  static bool is_listening() noexcept;  // to the calling thread
  void stop() noexcept { listening_ = false; }

  const DevicePtr& device() const noexcept { return device_; }
  const std::vector<Launch>& launches() const noexcept { return launches_; }
  const std::vector<Upload>& uploads() const noexcept { return uploads_; }
  // The first command that cannot be made again; empty: there was none.
  const std::string& foreign() const noexcept { return foreign_; }

 private:
  explicit LaunchRecorder(DevicePtr device) : device_(std::move(device)) {}

  const DevicePtr device_;
  std::atomic<bool> listening_ = true;
  std::vector<Launch> launches_;
  std::vector<Upload> uploads_;
  std::string foreign_;
  bool uploads_now_ = false;
  std::unordered_map<_cl_mem*, SharedMemory> held_;  // what is named above: a handle that is free is soon another's

 public:
  // The recorder of commands that the calling thread gives a device; null: none. For cl/.
  static LaunchRecorder* current(const Device::State& state) noexcept;
  void note_launch(Launch launch);
  void note_upload(_cl_mem* buffer, const void* host, std::size_t bytes);
  // Notes an upload; until it ends, the commands of the calling thread are its own. REQUIRES: one at a time.
  class Uploading {
   public:
    Uploading(LaunchRecorder* recorder, _cl_mem* buffer, const void* host, std::size_t bytes) : recorder_(recorder) {
      if (recorder_ == nullptr) return;
      recorder_->note_upload(buffer, host, bytes);
      recorder_->uploads_now_ = true;
    }
    ~Uploading() {
      if (recorder_ != nullptr) recorder_->uploads_now_ = false;
    }
    Uploading(const Uploading&) = delete;
    Uploading& operator=(const Uploading&) = delete;

   private:
    LaunchRecorder* const recorder_;
  };
  void note_foreign(const char* command) {
    if (foreign_.empty() && !uploads_now_) foreign_ = command;
  }
};

}  // namespace kvtrie::cl
