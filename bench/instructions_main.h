// What the programs that bench/instructions.py runs under callgrind share: their command line, and the function whose
// instructions are counted.
//
//     PROGRAM OPERATION SIZE    kTimes of the operation on so many of what the program has
//     PROGRAM --built           what decides the counts beside the sources: compiler and C library
//
// Ends with 1 when the work did not do what its name says. Include it in one source of a program.
#pragma once

#include <gnu/libc-version.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <type_traits>

// What is counted. Callgrind is told its name: so no copy of it may be made for the arguments it gets.
#if defined(__clang__)
#define KVTRIE_AS_WRITTEN noinline
#else
#define KVTRIE_AS_WRITTEN noipa
#endif
extern "C" __attribute__((KVTRIE_AS_WRITTEN, visibility("default"))) void measured(void (*run)(void*), void* work) {
  run(work);
}
#undef KVTRIE_AS_WRITTEN

namespace kvtrie::bench {

constexpr std::size_t kTimes = 500;

// Counts what `Run` does to `work`, which keeps how many operations were done.
template <auto Run, class Work>
std::size_t counted(Work&& work) {
  measured([](void* each) { Run(*static_cast<std::remove_reference_t<Work>*>(each)); }, &work);
  return work.done;
}

struct Operation {
  const char* name;
  std::size_t (*run)(std::size_t size);  // how many operations were done
};

inline void print_built() {
#if defined(__clang__)
  const char* compiler = "clang";
#else
  const char* compiler = "gcc";
#endif
#if defined(__OPTIMIZE__) && defined(NDEBUG)
  const char* kind = "optimised";
#else
  const char* kind = "not optimised";
#endif
  std::printf("%s %d.%d, %s, glibc %s\n", compiler, __GNUC__, __GNUC_MINOR__, kind, gnu_get_libc_version());
}

inline int run_operations(int argc, char** argv, std::span<const Operation> operations) {
  if (argc == 2 && std::strcmp(argv[1], "--built") == 0) {
    print_built();
    return 0;
  }
  const std::size_t size = argc == 3 ? std::strtoul(argv[2], nullptr, 10) : 0;
  for (const Operation& operation : operations) {
    if (size < kTimes || std::strcmp(operation.name, argv[1]) != 0) continue;
    const std::size_t done = operation.run(size);
    if (done == kTimes) return 0;
    std::fprintf(stderr, "%s: got %zu done, allowed %zu\n", operation.name, done, kTimes);
    return 1;
  }
  std::fprintf(stderr, "usage: %s --built | OPERATION SIZE (%zu or more), OPERATION one of", argv[0], kTimes);
  for (const Operation& operation : operations) std::fprintf(stderr, " %s", operation.name);
  std::fprintf(stderr, "\n");
  return 2;
}

}  // namespace kvtrie::bench
