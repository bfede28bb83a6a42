// SPDX-License-Identifier: Apache-2.0
#include "common/shared_bus.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/link_options.h"
#include "common/status_macros.h"

namespace lamina {
namespace {

constexpr size_t kNameMax = 64;
constexpr double kNanosPerSecond = 1e9;

absl::Status Error(absl::string_view path, absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("bus ", path, ": ", what, ": ", strerror(errno)));
}

// A lock that others share says that somebody is on the bus.
bool IsStillThere(int file, const std::string& path) {
  struct stat opened = {};
  struct stat named = {};
  return fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino;
}

}  // namespace

absl::string_view NameOf(BusKind kind) {
  switch (kind) {
    case BusKind::kKv:
      return "kv";
    case BusKind::kActivations:
      return "activations";
    case BusKind::kWeights:
      return "weights";
    case BusKind::kRows:
      return "rows";
    case BusKind::kProbes:
      return "probes";
  }
  return "";
}

bool IsBusName(absl::string_view name) {
  absl::string_view own = name;
  while (absl::ConsumeSuffix(&own, ".to") || absl::ConsumeSuffix(&own, ".from")) {
  }
  return !own.empty() && own.size() <= kNameMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                  c == '.';
         });
}

absl::StatusOr<std::shared_ptr<SharedBus>> SharedBus::Open(absl::string_view name,
                                                           uint64_t bytes_per_second) {
  if (!IsBusName(name)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is no name of a bus"));
  }
  const std::string path = absl::StrCat("/dev/shm/lamina-bus-", getuid(), "-", name);
  while (true) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) {
      return Error(path, "open");
    }
    if (flock(file, LOCK_SH) != 0 || ftruncate(file, sizeof(Page)) != 0) {
      const absl::Status error = Error(path, "lock");
      close(file);
      return error;
    }
    if (!IsStillThere(file, path)) {  // Whoever was the last one took it away meanwhile.
      close(file);
      continue;
    }
    void* const mapped = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
      const absl::Status error = Error(path, "map");
      close(file);
      return error;
    }
    static_assert(std::atomic<int64_t>::is_always_lock_free &&
                  std::atomic<uint64_t>::is_always_lock_free);
    return std::shared_ptr<SharedBus>(
        new SharedBus(path, file, static_cast<Page*>(mapped), bytes_per_second));
  }
}

SharedBus::~SharedBus() {
  if (flock(file_, LOCK_EX | LOCK_NB) == 0) {
    unlink(path_.c_str());
  }
  munmap(page_, sizeof(Page));
  close(file_);
}

Nanos SharedBus::Take(uint64_t bytes, Nanos now) {
  const auto needs = static_cast<Nanos>(static_cast<double>(bytes) * kNanosPerSecond /
                                        static_cast<double>(bytes_per_second_));
  int64_t free_at = page_->free_at.load(std::memory_order_relaxed);
  int64_t through = 0;
  do {
    through = std::max<int64_t>(free_at, now) + needs;
  } while (!page_->free_at.compare_exchange_weak(free_at, through, std::memory_order_relaxed));
  page_->busy_nanos.fetch_add(needs, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return through;
}

BusTotals SharedBus::Totals() const {
  BusTotals totals{
      .bytes_per_second = bytes_per_second_,
      .busy_seconds =
          static_cast<double>(page_->busy_nanos.load(std::memory_order_relaxed)) / kNanosPerSecond};
  for (size_t kind = 0; kind < kBusKinds; ++kind) {
    totals.bytes[kind] = page_->bytes[kind].load(std::memory_order_relaxed);
  }
  return totals;
}

absl::StatusOr<std::shared_ptr<SharedBus>> OpenBusOf(absl::string_view uri) {
  constexpr absl::string_view kThrottle = "throttle(";
  const size_t begin = uri.find(kThrottle);
  const size_t end = uri.find(')', begin);
  if (begin == absl::string_view::npos || end == absl::string_view::npos) {
    return nullptr;
  }
  const size_t first = begin + kThrottle.size();
  LAMINA_ASSIGN_OR_RETURN(const ThrottleOptions options,
                          ParseThrottle(uri.substr(first, end - first)));
  if (options.bus.empty()) {
    return nullptr;
  }
  return SharedBus::Open(options.bus, options.bytes_per_second);
}

}  // namespace lamina
