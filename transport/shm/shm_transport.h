// SPDX-License-Identifier: Apache-2.0
//
// shm://: a Put is a memcpy into memory that both processes map, and a signal is a store.
//
// Weak signals are strong. A Put is complete when it returns, so nothing is ever pending and no
// queue can be full. There is no system call in a Put, unless the waiter sleeps.
//
// Limits: one host, one user, one process namespace. A peer that was killed looks like one that is
//         silent: only the deadline of a Wait, or the control plane, can tell. A peer that
//         destroyed its region refuses Puts with kUnavailable.

#pragma once

#include <memory>

#include "transport/transport.h"

namespace lamina::transport {

std::unique_ptr<Transport> MakeShmTransport();

}  // namespace lamina::transport
