// SPDX-License-Identifier: Apache-2.0
#include "common/file_limit.h"

#include <sys/resource.h>

namespace lamina {

void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace lamina
