// SPDX-License-Identifier: Apache-2.0
//
// Names of the memory that KV slots lie in (PreparedNode::kv_arena), for nodes that keep it from
// epoch to epoch.

#pragma once

#include <cstdint>

namespace lamina::control {

// Unlike that of any other arena, of this process or another one. Never 0. Threading: any thread.
uint64_t DrawKvArena();

}  // namespace lamina::control
