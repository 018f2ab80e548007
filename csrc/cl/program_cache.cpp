#include "cl/program_cache.h"

#include <string_view>
#include <tuple>
#include <vector>

#include "cl/compiler_output.h"
#include "cl/kernel_sources.h"

namespace kvtrie::cl {
namespace {

constexpr std::string_view kFormat = "program 1";  // part of each key; a new number makes all old binaries strangers
constexpr const char* kDeclared = " -DDECLARE_BUILTINS -D_OPENCL_H_";  // kernels/builtins.clh

}  // namespace

ProgramCache::ProgramCache(cl_context context, cl_device_id device, std::string device_key, const DiskCache& disk,
                           std::shared_ptr<Meter> meter, Compiling compiling)
    : context_(context),
      device_(device),
      device_key_(std::move(device_key)),
      disk_(disk),
      meter_(std::move(meter)),
      compiling_(compiling) {}

std::shared_ptr<ProgramCache::Slot> ProgramCache::slot(const std::string& program, const std::string& options) {
  const MutexLock lock(mutex_);
  auto& entry = slots_[{program, options}];
  if (!entry) entry = std::make_shared<Slot>();
  return entry;
}

std::shared_ptr<Kernel::State> ProgramCache::kernel(std::string_view program, std::string_view name,
                                                    std::string_view options) {
  thread_local std::string key;  // keeps its memory
  key.assign(program).append(1, '\0').append(name).append(1, '\0').append(options);
  {
    const MutexLock lock(mutex_);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
  }
  std::shared_ptr<Kernel::State> state = made(std::string(program), std::string(name), std::string(options));
  const MutexLock lock(mutex_);
  return known_.emplace(key, std::move(state)).first->second;
}

std::shared_ptr<Kernel::State> ProgramCache::made(const std::string& program, const std::string& name,
                                                  const std::string& options) {
  const std::shared_ptr<Slot> entry = slot(program, options);
  const MutexLock lock(entry->mutex);
  if (const auto known = entry->kernels.find(name); known != entry->kernels.end()) return known->second;
  if (!entry->program) build(program, options, *entry);
  const cl_program built = entry->program->handle.get();
  KernelHandle handle(
      make_handle("clCreateKernel", [&](cl_int* code) { return clCreateKernel(built, name.c_str(), code); }));
  auto state = std::make_shared<Kernel::State>(name, program, options, entry->program, std::move(handle), meter_);
  entry->kernels.emplace(name, state);
  return state;
}

// Warnings are for those who write kernels; some compilers print how many there are, readers or not.
std::string ProgramCache::full_options(const std::string& options) const {
  std::string all = compiling_.warned ? "-cl-std=CL1.2" : "-cl-std=CL1.2 -w";
  if (!options.empty()) all += " " + options;
  return all;
}

// clBuildProgram. Its result; what it prints and, where compilers may warn, the build log of a success are logged.
int ProgramCache::compile(const std::string& what, cl_program program, const std::string& options) const {
  const auto call = [&] {
    return result_of("clBuildProgram",
                     [&] { return clBuildProgram(program, 1, &device_, options.c_str(), nullptr, nullptr); });
  };
  int code = CL_SUCCESS;
  if (compiling_.caught) {
    log_printed(what, [&] { code = call(); });
  } else {
    code = call();
  }
  if (code == CL_SUCCESS && compiling_.warned) {
    if (const std::string log = build_log(program); !log.empty())
      log_message(LogLevel::kWarning, cat("[", what, "] the build log says:\n", log));
  }
  return code;
}

// A program of kernels/<program>.cl, and the log of clBuildProgram.
std::pair<ProgramHandle, int> ProgramCache::compile_source(const std::string& program, const std::string& flags) const {
  const std::string_view source = kernel_source(program);
  const char* text = source.data();
  const std::size_t length = source.size();
  ProgramHandle made(make_handle("clCreateProgramWithSource", [&](cl_int* code) {
    return clCreateProgramWithSource(context_, 1, &text, &length, code);
  }));
  const int code = compile(cat("kernels/", program, ".cl"), made.get(), flags);
  return {std::move(made), code};
}

ProgramHandle ProgramCache::build_source(const std::string& program, const std::string& flags) const {
  auto [built, code] = compile_source(program, compiling_.declared ? flags + kDeclared : flags);
  if (code == CL_BUILD_PROGRAM_FAILURE && compiling_.declared) {
    log_message(LogLevel::kInfo,
                cat("[program cache] kernels/", program,
                    ".cl is built with the compiler's own declarations; with ours:\n", build_log(built.get())));
    std::tie(built, code) = compile_source(program, flags);
  }
  if (code != CL_SUCCESS) {
    fail(ErrorKind::kDevice, "clBuildProgram", "kernels/", program, ".cl with \"", flags, "\": got ", error_name(code),
         " (", code, "), allowed CL_SUCCESS; build log:\n", build_log(built.get()));
  }
  return std::move(built);
}

void ProgramCache::build(const std::string& program, const std::string& options, Slot& slot) const {
  const std::string flags = full_options(options);
  std::string key = key_of({kFormat, device_key_, flags, kernel_source(program)});
  ProgramHandle built = load_binary(key, flags);
  const bool is_new = !built;
  if (is_new) built = build_source(program, flags);
  if (is_new && !compiling_.kept_later) store_binary(key, built.get());
  slot.program = std::make_shared<Program>(std::move(built), meter_->programs);
  if (is_new && compiling_.kept_later) slot.unsaved = std::move(key);
}

void ProgramCache::save() const {
  std::vector<std::shared_ptr<Slot>> all;
  {
    const MutexLock lock(mutex_);
    for (const auto& [name, entry] : slots_) all.push_back(entry);
  }
  for (const std::shared_ptr<Slot>& entry : all) {
    const MutexLock lock(entry->mutex);
    if (entry->unsaved.empty()) continue;
    store_binary(entry->unsaved, entry->program->handle.get());
    entry->unsaved.clear();
  }
}

ProgramHandle ProgramCache::load_binary(const std::string& key, const std::string& options) const {
  const auto binary = disk_.load(key);
  if (!binary || binary->empty()) return {};
  const auto* bytes = reinterpret_cast<const unsigned char*>(binary->data());
  const std::size_t length = binary->size();
  cl_int status = CL_SUCCESS, code = CL_SUCCESS;
  ProgramHandle program(clCreateProgramWithBinary(context_, 1, &device_, &length, &bytes, &status, &code));
  const bool known = code == CL_SUCCESS && status == CL_SUCCESS;
  if (known && compile("a stored binary", program.get(), options) == CL_SUCCESS) return program;
  log_message(LogLevel::kWarning, "[program cache] the driver refused a stored binary; the program is built again");
  return {};
}

void ProgramCache::store_binary(const std::string& key, cl_program program) const {
  if (!disk_.enabled()) return;
  std::size_t length = 0;
  if (clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof length, &length, nullptr) != CL_SUCCESS) return;
  std::vector<std::byte> binary(length);
  auto* bytes = reinterpret_cast<unsigned char*>(binary.data());
  if (length == 0) return;
  if (clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof bytes, &bytes, nullptr) != CL_SUCCESS) return;
  disk_.store(key, binary);
}

std::string ProgramCache::build_log(cl_program program) const {
  std::size_t length = 0;
  if (clGetProgramBuildInfo(program, device_, CL_PROGRAM_BUILD_LOG, 0, nullptr, &length) != CL_SUCCESS) return "none";
  std::string log(length, '\0');
  if (clGetProgramBuildInfo(program, device_, CL_PROGRAM_BUILD_LOG, length, log.data(), nullptr) != CL_SUCCESS) {
    return "none";
  }
  while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
  return log;
}

}  // namespace kvtrie::cl
