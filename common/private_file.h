// SPDX-License-Identifier: Apache-2.0
//
// Whether a file with a secret can be read by its user alone.

#pragma once

#include <sys/stat.h>

namespace lamina {

// Whether a file of that mode and owner is private to `user`: neither its group nor others may use
// it. Or, as Kubernetes and systemd hand a secret to who is not root: it is root's, the group may
// read it, and nobody else may do anything.
inline bool IsPrivate(mode_t mode, uid_t owner, uid_t user) {
  if ((mode & (S_IRWXG | S_IRWXO)) == 0) {
    return true;
  }
  return owner == 0 && user != 0 && (mode & (S_IWGRP | S_IXGRP | S_IRWXO)) == 0;
}

}  // namespace lamina
