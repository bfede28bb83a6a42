// SPDX-License-Identifier: Apache-2.0
//
// Memlock: how much memory this process may pin, which is what peers write into by RDMA.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lamina {

// Bytes that this process may pin; UINT64_MAX: as many as there are, also for who may pin past the
// limit (CAP_IPC_LOCK).
uint64_t MemlockLimit();

// Whether the transport of `uri` pins what peers write into and what is put: verbs always, ucx
// where the host has an RDMA device.
bool PinsMemory(absl::string_view uri);

// Whether windows of so many bytes can be pinned within `limit` where the transport of `uri` pins
// them: verbs always, ucx over RDMA, which a host without an RDMA device does not have. `key` is
// what they follow from, like "fetch.window: 1.0 GiB".
// Errors: kResourceExhausted  with verbs they cannot. With ucx, which may go another way, that is
//                             a warning in the log.
absl::Status CheckMemlock(absl::string_view uri, absl::string_view key, uint64_t bytes,
                          uint64_t limit);

}  // namespace lamina
