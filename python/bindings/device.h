// Devices as Python sees them: one handle for each OpenCL device, the same object every time, opened at first use.
//
// Threads: the GIL is held in every function; it is released while a device opens.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "cl/device.h"
#include "gil.h"
#include "typed.h"

namespace kvtrie::binding {

struct DeviceHandle {
  explicit DeviceHandle(cl::DeviceInfo the_info) : info(std::move(the_info)) {}

  const cl::DevicePtr& open();  // opens at first use, once a child process found that the driver survives it
  const cl::DevicePtr& open(cl::Device::Options options);
  cl::Device::Options usual_options() const;  // what the first form opens it with

  const cl::DeviceInfo info;
  cl::DevicePtr device;  // null until opened; guarded by the GIL

 private:
  Mutex mutex_;  // held while opening, without the GIL
  cl::DevicePtr opened_ KVTRIE_GUARDED_BY(mutex_);
};
using DeviceHandlePtr = std::shared_ptr<DeviceHandle>;

std::vector<DeviceHandlePtr> device_handles();  // of every device of the machine
DeviceHandlePtr default_device();               // throws kDevice when there is none
DeviceHandlePtr handle_of(const cl::DevicePtr& device);

// A handle of OpenCL, which an object of pyopencl has as `int_ptr`; never null. Bare numbers are refused: what is no
// handle would crash the process.
void* to_opencl(py::handle value, std::string_view where, std::string_view name);

// Where a tensor or cache is to live.
struct Placement {
  bool on_host = false;
  cl::DevicePtr device;  // null exactly when `on_host`
};

// From a `device` argument: None (the default device), a Device, "host", or part of a device's name.
Placement to_placement(py::handle value, std::string_view where);
Typed<"Device | str"> placement_to_python(const cl::DevicePtr& device);  // a Device; "host" for null

}  // namespace kvtrie::binding
