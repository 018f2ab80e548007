// What compilers print: it reaches the log, and nothing else that is printed meanwhile does.
#include "cl/compiler_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "device_test.h"

namespace kvtrie::cl {
namespace {

void print(int to, const std::string& text) {
  ASSERT_EQ(::write(to, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

// Standard output and standard error of the process go to files while it lives.
class CompilerOutput : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    std::fflush(nullptr);
    for (const int each : {STDOUT_FILENO, STDERR_FILENO}) {
      before_[each] = ::dup(each);
      files_[each] = std::tmpfile();
      ::dup2(::fileno(files_[each]), each);
    }
    set_log_sink([this](LogLevel, const std::string& message) { log_.push_back(message); }, LogLevel::kWarning);
  }
  void TearDown() override {
    set_log_sink({});
    for (const int each : {STDOUT_FILENO, STDERR_FILENO}) {
      ::dup2(before_[each], each);
      ::close(before_[each]);
      std::fclose(files_[each]);
    }
    DeviceTest::TearDown();
  }

  std::string printed(int to) const {
    std::string text(1 << 16, '\0');
    const ssize_t got = ::pread(::fileno(files_[to]), text.data(), text.size(), 0);
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }
  void expect_silence() const {
    EXPECT_EQ(printed(STDOUT_FILENO), "");
    EXPECT_EQ(printed(STDERR_FILENO), "");
  }

  int before_[3] = {};
  std::FILE* files_[3] = {};
  std::vector<std::string> log_;
};

TEST_F(CompilerOutput, WhatACallAndItsProcessesPrintIsLogged) {
  log_printed("a build", [] {
    print(STDERR_FILENO, "one\n");
    print(STDOUT_FILENO, "two\n");
    EXPECT_EQ(std::system("echo three >&2"), 0);
  });
  expect_silence();
  ASSERT_EQ(log_.size(), 1U);
  EXPECT_EQ(log_[0], "[a build] the compiler printed:\none\ntwo\nthree");
  log_printed("a build", [] {});
  EXPECT_EQ(log_.size(), 1U);
}

TEST_F(CompilerOutput, WhatOtherThreadsAndTheirProcessesPrintMeanwhileIsTheirs) {
  std::atomic<int> stage{0};
  std::thread build([&] {
    log_printed("a build", [&] {
      print(STDERR_FILENO, "ours");
      stage = 1;
      while (stage != 2) std::this_thread::yield();
    });
  });
  while (stage != 1) std::this_thread::yield();
  print(STDERR_FILENO, "theirs\n");
  EXPECT_EQ(std::system("echo a child >&2"), 0);
  const int redirected = ::dup(STDERR_FILENO);
  ::dup2(::fileno(files_[STDOUT_FILENO]), STDERR_FILENO);  // as those do who capture output
  print(STDERR_FILENO, "elsewhere");
  stage = 2;
  build.join();
  print(STDERR_FILENO, " and after");
  ::dup2(redirected, STDERR_FILENO);
  ::close(redirected);
  EXPECT_EQ(printed(STDERR_FILENO), "theirs\na child\n");
  EXPECT_EQ(printed(STDOUT_FILENO), "elsewhere and after");
  ASSERT_EQ(log_.size(), 1U);
  EXPECT_TRUE(contains(log_[0], "ours"));
}

TEST_F(CompilerOutput, CallsNestAndRunSideBySide) {
  std::vector<std::string> kept;
  std::mutex mutex;
  set_log_sink([&](LogLevel, const std::string& message) {  // before there is a thread that logs
    const std::lock_guard lock(mutex);
    kept.push_back(message);
  });
  std::vector<std::thread> threads;
  std::atomic<int> inside{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      log_printed("outer", [&] {
        ++inside;
        while (inside < 4) std::this_thread::yield();  // all at once
        log_printed("inner", [] { print(STDERR_FILENO, "in"); });
        print(STDERR_FILENO, "out");
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_silence();
  EXPECT_EQ(std::count(kept.begin(), kept.end(), "[inner] the compiler printed:\nin"), 4);
  EXPECT_EQ(std::count(kept.begin(), kept.end(), "[outer] the compiler printed:\nout"), 4);
}

TEST_F(CompilerOutput, ExceptionsPassAndTheTextBeforeThemIsLogged) {
  EXPECT_THROW(log_printed("a build",
                           [] {
                             print(STDERR_FILENO, "before");
                             throw std::runtime_error("no");
                           }),
               std::runtime_error);
  ASSERT_EQ(log_.size(), 1U);
  EXPECT_TRUE(contains(log_[0], "before"));
}

TEST_F(CompilerOutput, HoweverMuchIsPrintedNobodyWaits) {
  log_printed("a build", [] {
    for (int i = 0; i < 1000; ++i) print(STDERR_FILENO, std::string(999, 'x') + "\n");
  });
  ASSERT_EQ(log_.size(), 1U);
  EXPECT_LT(log_[0].size(), kMostPrinted + 200);
  EXPECT_TRUE(contains(log_[0], "(1000000 bytes in all)"));
}

TEST_F(CompilerOutput, AClosedStandardErrorStaysClosed) {
  ::close(STDERR_FILENO);
  log_printed("a build", [] { print(STDERR_FILENO, "text"); });
  EXPECT_EQ(::fcntl(STDERR_FILENO, F_GETFD), -1);
  ASSERT_EQ(log_.size(), 1U);
  EXPECT_TRUE(contains(log_[0], "text"));
}

TEST_F(CompilerOutput, SignalsGoToOtherThreads) {
  sigset_t before, inside, after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  log_printed("a build", [&] { ::pthread_sigmask(SIG_SETMASK, nullptr, &inside); });
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGINT, SIGTERM, SIGALRM}) {
    EXPECT_EQ(::sigismember(&inside, signal), 1);
    EXPECT_EQ(::sigismember(&after, signal), ::sigismember(&before, signal));
  }
}

// PoCL prints how many warnings there were, as every compiler made of clang does.
TEST_F(CompilerOutput, ACompilerThatWarnsIsHeardInTheLogOnly) {
  if (device().info().kind != DeviceKind::kCpu) GTEST_SKIP() << "compilers of other devices are not listened to";
  const DevicePtr other = Device::open(device().info(), {.cache_folder = "", .warnings = true, .max_bytes = 0});
  other->kernel("probe", "probe_scale", "-DWARN");
  expect_silence();
  std::string all;
  for (const std::string& message : log_) all += message + "\n";
  EXPECT_TRUE(contains(all, "kernels/probe.cl")) << all;
  EXPECT_TRUE(contains(all, "as asked for")) << all;
}

TEST_F(CompilerOutput, ACompilerIsToldNotToWarn) {
  const DevicePtr other = Device::open(device().info(), {});
  other->kernel("probe", "probe_scale", "-DWARN");
  expect_silence();
  EXPECT_TRUE(log_.empty());
}

}  // namespace
}  // namespace kvtrie::cl
