// SPDX-License-Identifier: Apache-2.0
#include "common/last_cache.h"

#include <fstream>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace lamina {
namespace {

// More than processors have.
constexpr int kCachesMax = 16;

// The first line of a file; empty where there is none.
std::string ReadLine(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// Reads "32768K". 0: it is something else.
uint64_t ParseSize(absl::string_view text) {
  uint64_t kib = 0;
  return absl::ConsumeSuffix(&text, "K") && absl::SimpleAtoi(text, &kib) ? kib << 10 : 0;
}

}  // namespace

uint64_t LastCacheBytes(const std::vector<int>& cores, const std::string& folder) {
  std::map<std::string, uint64_t> caches;  // Bytes, by the cores that share one.
  for (const int core : cores) {
    std::string last;  // The kernel numbers a core's caches from the first level on.
    std::string size;
    for (int index = 0; index < kCachesMax; ++index) {
      const std::string cache = absl::StrCat(folder, "/cpu", core, "/cache/index", index);
      const std::string found = ReadLine(cache + "/size");
      if (found.empty()) {
        break;
      }
      last = cache;
      size = found;
    }
    if (!last.empty()) {
      caches[ReadLine(last + "/shared_cpu_list")] = ParseSize(size);
    }
  }
  uint64_t bytes = 0;
  for (const auto& [sharing, cache_bytes] : caches) {
    bytes += cache_bytes;
  }
  return bytes;
}

}  // namespace lamina
