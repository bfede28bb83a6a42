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

namespace lamina {
namespace {

constexpr size_t kNameMax = 64;

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

bool IsBusName(absl::string_view name) {
  return !name.empty() && name.size() <= kNameMax &&
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
    if (flock(file, LOCK_SH) != 0 || ftruncate(file, sizeof(std::atomic<int64_t>)) != 0) {
      const absl::Status error = Error(path, "lock");
      close(file);
      return error;
    }
    if (!IsStillThere(file, path)) {  // Whoever was the last one took it away meanwhile.
      close(file);
      continue;
    }
    void* const mapped =
        mmap(nullptr, sizeof(std::atomic<int64_t>), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
      const absl::Status error = Error(path, "map");
      close(file);
      return error;
    }
    static_assert(std::atomic<int64_t>::is_always_lock_free);
    return std::shared_ptr<SharedBus>(
        new SharedBus(path, file, static_cast<std::atomic<int64_t>*>(mapped), bytes_per_second));
  }
}

SharedBus::~SharedBus() {
  if (flock(file_, LOCK_EX | LOCK_NB) == 0) {
    unlink(path_.c_str());
  }
  munmap(free_at_, sizeof(std::atomic<int64_t>));
  close(file_);
}

Nanos SharedBus::Take(uint64_t bytes, Nanos now) {
  constexpr double kNanosPerSecond = 1e9;
  const auto needs = static_cast<Nanos>(static_cast<double>(bytes) * kNanosPerSecond /
                                        static_cast<double>(bytes_per_second_));
  int64_t free_at = free_at_->load(std::memory_order_relaxed);
  int64_t through = 0;
  do {
    through = std::max<int64_t>(free_at, now) + needs;
  } while (!free_at_->compare_exchange_weak(free_at, through, std::memory_order_relaxed));
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return through;
}

}  // namespace lamina
