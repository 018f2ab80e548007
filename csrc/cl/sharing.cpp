// Contexts, queues and buffers that other libraries of the process use, too.
//
// OpenCL counts references to its objects: each side holds its own, so either may end first. A handle is the driver's
// object, whichever loader it came through; what is no handle at all cannot be told apart from one.
#include <algorithm>
#include <vector>

#include "cl/device_state.h"

namespace kvtrie::cl {
namespace {

constexpr const char* kWhere = "Device.from_opencl";

template <class Value>
Value asked_of(cl_command_queue queue, cl_command_queue_info what) {
  Value value{};
  check_call("clGetCommandQueueInfo",
             [&] { return clGetCommandQueueInfo(queue, what, sizeof value, &value, nullptr); });
  return value;
}

template <class Value>
Value asked_of(cl_mem memory, cl_mem_info what) {
  Value value{};
  check_call("clGetMemObjectInfo", [&] { return clGetMemObjectInfo(memory, what, sizeof value, &value, nullptr); });
  return value;
}

std::vector<cl_device_id> devices_of(cl_context context) {
  std::size_t bytes = 0;
  const auto ask = [&](std::size_t room, void* into, std::size_t* needed) {
    check_call("clGetContextInfo", [&] { return clGetContextInfo(context, CL_CONTEXT_DEVICES, room, into, needed); });
  };
  ask(0, nullptr, &bytes);
  std::vector<cl_device_id> devices(bytes / sizeof(cl_device_id));
  ask(bytes, devices.data(), nullptr);
  return devices;
}

// The device that is meant.
cl_device_id device_of(const Device::Handles& theirs) {
  require(theirs.context != nullptr, kWhere, "context: got 0, allowed a cl_context");
  if (theirs.queue == nullptr) {
    const std::vector<cl_device_id> devices = devices_of(theirs.context);
    require(devices.size() == 1, kWhere, "context: got one of ", devices.size(),
            " devices, allowed one of one device, or a queue that says which");
    return devices.front();
  }
  require(asked_of<cl_context>(theirs.queue, CL_QUEUE_CONTEXT) == theirs.context, kWhere,
          "queue: got one of another context, allowed one of the context");
  const auto properties = asked_of<cl_command_queue_properties>(theirs.queue, CL_QUEUE_PROPERTIES);
  require((properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) == 0, kWhere,
          "queue: got one that runs out of order, allowed one that is in order");
  return asked_of<cl_device_id>(theirs.queue, CL_QUEUE_DEVICE);
}

FoundDevice found_of(const Device::Handles& theirs) {
  const cl_device_id wanted = device_of(theirs);
  std::vector<FoundDevice> all = find_devices({});
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const FoundDevice& each) { return each.device == wanted; });
  require(found != all.end(), kWhere,
          "context: got one of a device that kvtrie does not see, allowed one of devices()");
  return std::move(*found);
}

}  // namespace

DeviceInfo Device::info_of(const Handles& theirs) { return found_of(theirs).info; }

DevicePtr Device::open_shared(const Handles& theirs, Options options) {
  FoundDevice found = found_of(theirs);
  check_call("clRetainContext", [&] { return clRetainContext(theirs.context); });
  ContextHandle context(theirs.context);
  QueueHandle queue;
  if (theirs.queue != nullptr) {
    check_call("clRetainCommandQueue", [&] { return clRetainCommandQueue(theirs.queue); });
    queue = QueueHandle(theirs.queue);
  }
  auto state = std::make_unique<State>(std::move(found), std::move(options), std::move(context), std::move(queue));
  return DevicePtr(new Device(std::move(state)));
}

Device::Handles Device::handles() const noexcept { return {state_->context.get(), state_->queue.get()}; }

Buffer Buffer::share(DevicePtr device, _cl_mem* handle) {
  constexpr const char* where = "Buffer.share";
  require(device != nullptr, where, "device: got none, allowed an open device");
  require(handle != nullptr, where, "buffer: got 0, allowed a cl_mem");
  require(asked_of<cl_mem_object_type>(handle, CL_MEM_TYPE) == CL_MEM_OBJECT_BUFFER, where,
          "buffer: got an image or a pipe, allowed a buffer");
  require(asked_of<cl_context>(handle, CL_MEM_CONTEXT) == device->state().context.get(), where,
          "buffer: got one of another context, allowed one of the device's (Device.from_opencl)");
  const auto bytes = asked_of<std::size_t>(handle, CL_MEM_SIZE);
  check_call("clRetainMemObject", [&] { return clRetainMemObject(handle); });
  Buffer buffer;
  buffer.handle_ = handle;
  buffer.bytes_ = bytes;
  buffer.wrapped_ = true;  // memory of others: it is in no budget
  device->state().meter->count_wrapped(1, static_cast<std::int64_t>(bytes));
  buffer.device_ = std::move(device);
  return buffer;
}

}  // namespace kvtrie::cl
