// SPDX-License-Identifier: Apache-2.0
#include "common/malloc_pages.h"

#include <malloc.h>
#include <unistd.h>

#include <cstdlib>

#include "common/log.h"

namespace lamina {

void EnsureHugePagesForMalloc(char** argv) {
  if (std::getenv("GLIBC_TUNABLES") != nullptr) {
    return;
  }
  setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1);
  // By its real path, so that the process keeps its name.
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length > 0) {
    path[length] = '\0';
    execv(path, argv);
  }
  LogWarning("could not start again with huge pages for malloc; memory stays on small pages");
}

void KeepFreedMemory() {
  // Setting one of both ends malloc's adaptation of the other.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

}  // namespace lamina
