// Every fuzz target plays what is in its corpus: inputs that reach far, and each input that once was a finding.
//
//     test_fuzz                   the whole corpus
//     test_fuzz TARGET FILE ...   these inputs alone, as `./dev fuzz` says it
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>
#include <string>

#include "circle.h"
#include "fuzz_target.h"

namespace kvtrie::fuzz {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void play(const Target& target, const std::string& bytes) { play(target, std::as_bytes(std::span(bytes))); }

std::vector<fs::path> inputs_of(std::string_view target) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(fs::path(KVTRIE_FUZZ_CORPUS) / target)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

class Corpus : public ::testing::TestWithParam<Target> {};

TEST_P(Corpus, HoldsToItsPromises) {
  const std::vector<fs::path> paths = inputs_of(GetParam().name);
  EXPECT_FALSE(paths.empty());
  EXPECT_NO_THROW(play(GetParam(), "")) << "the empty input";
  for (const fs::path& path : paths) {
    try {
      play(GetParam(), contents(path));
    } catch (const std::exception& finding) {
      ADD_FAILURE() << path.filename() << ": " << finding.what();
    }
  }
}

// No input is too short: a target reads zeros behind the end.
TEST_P(Corpus, HoldsToItsPromisesWhereAnInputEnds) {
  for (const fs::path& path : inputs_of(GetParam().name)) {
    const std::string whole = contents(path);
    for (std::size_t length = 0; length < whole.size(); length += 1 + whole.size() / oracle::by_circle(2, 8, 8)) {
      try {
        play(GetParam(), whole.substr(0, length));
      } catch (const std::exception& finding) {
        ADD_FAILURE() << path.filename() << ", " << length << " bytes of it: " << finding.what();
      }
    }
  }
}

std::string name_of_target(const ::testing::TestParamInfo<Target>& info) { return std::string(info.param.name); }
INSTANTIATE_TEST_SUITE_P(Targets, Corpus, ::testing::ValuesIn(targets()), name_of_target);

TEST(Corpora, AreOfTargets) {
  std::set<std::string> known, folders;
  for (const Target& target : targets()) known.emplace(target.name);
  for (const auto& entry : fs::directory_iterator(KVTRIE_FUZZ_CORPUS)) {
    const std::string name = entry.path().filename();
    if (name.rfind("python_", 0) != 0) folders.insert(name);  // tests/python/test_fuzz_corpus.py plays those
  }
  EXPECT_EQ(known, folders);
}

int replay(const std::string& name, std::span<char*> paths) {
  const auto found =
      std::find_if(targets().begin(), targets().end(), [&](const Target& each) { return each.name == name; });
  if (found == targets().end()) {
    std::cerr << "no target is called " << name << "\n";
    return 2;
  }
  for (const char* path : paths) {
    std::cout << name << ": " << path << std::endl;
    try {
      play(*found, contents(path));
    } catch (const std::exception& finding) {
      std::cout << "FINDING: " << finding.what() << "\n";
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace kvtrie::fuzz

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 2) return kvtrie::fuzz::replay(argv[1], std::span(argv + 2, static_cast<std::size_t>(argc) - 2));
  return RUN_ALL_TESTS();
}
