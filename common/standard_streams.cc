// SPDX-License-Identifier: Apache-2.0
#include "common/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

namespace lamina {

void KeepStandardStreams(char** argv) {
  bool taken = false;
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    const int flags = fcntl(stream, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) {
      continue;
    }
    taken = taken || flags >= 0;  // What was there before this program began has no FD_CLOEXEC.
    // Opened for what nobody does with it.
    const int null = open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (null >= 0 && null != stream) {
      dup2(null, stream);
      close(null);
    }
  }
  char path[4096];
  const ssize_t length = taken ? readlink("/proc/self/exe", path, sizeof(path) - 1) : -1;
  if (length > 0) {
    path[length] = '\0';
    execv(path, argv);
  }
}

}  // namespace lamina
