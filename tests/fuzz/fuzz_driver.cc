// SPDX-License-Identifier: Apache-2.0
//
// A plain driver of a fuzz target, for compilers without libFuzzer: all files of a folder, and what
// the target generates, as they are; then seeded mutations of them. Same arguments, same inputs.
// Each ten thousandth round is printed, so that a long run which ends early can go on from there.
//
// usage: TARGET FOLDER|- ROUNDS [FIRST_ROUND]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace {

constexpr uint64_t kSeed = 20261121;

std::vector<std::string> Corpus(const std::filesystem::path& folder) {
  std::vector<std::string> inputs = GeneratedSeeds();
  if (folder == "-") {
    return inputs;
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    std::stringstream content;
    content << std::ifstream(path, std::ios::binary).rdbuf();
    inputs.push_back(content.str());
  }
  return inputs;
}

void Run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

std::string Mutate(std::string text, const std::string& other, std::mt19937_64& random) {
  const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
  for (size_t left = 1 + below(4); left > 0; --left) {
    const size_t at = below(text.size() + 1);
    switch (below(6)) {
      case 0:
        text.erase(at, 1 + below(16));
        break;
      case 1:
        text.insert(at, text.substr(below(text.size() + 1), below(40)));
        break;
      case 2:
        text.insert(at, other.substr(below(other.size() + 1), below(60)));
        break;
      case 3:
        if (at < text.size()) {
          text[at] = static_cast<char>(below(256));
        }
        break;
      case 4:
        // A number of some format at its edges.
        for (size_t i = at; i < std::min(text.size(), at + (size_t{1} << below(4))); ++i) {
          text[i] = static_cast<char>(below(2) == 0 ? 0xff : 0x00);
        }
        break;
      default:
        text.insert(at, 1, static_cast<char>(below(256)));
    }
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: %s FOLDER|- ROUNDS [FIRST_ROUND]\n", argv[0]);
    return 2;
  }
  const std::vector<std::string> corpus = Corpus(argv[1]);
  if (corpus.empty()) {
    std::fprintf(stderr, "%s has no files\n", argv[1]);
    return 1;
  }
  for (const std::string& input : corpus) {
    Run(input);
  }
  const long first = argc == 4 ? std::atol(argv[3]) : 0;
  const long rounds = std::atol(argv[2]);
  for (long round = first; round < first + rounds; ++round) {
    if (round % 10'000 == 0) {
      std::printf("round %ld\n", round);
      std::fflush(stdout);
    }
    std::mt19937_64 random(kSeed + static_cast<uint64_t>(round));
    const std::string& base = corpus[random() % corpus.size()];
    Run(Mutate(base, corpus[random() % corpus.size()], random));
  }
  std::printf("%zu files, %ld mutations\n", corpus.size(), rounds);
  return 0;
}
