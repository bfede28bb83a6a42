// SPDX-License-Identifier: Apache-2.0
#include "control/kv_arena.h"

#include <random>

namespace lamina::control {

uint64_t DrawKvArena() {
  std::random_device random;
  uint64_t arena = 0;
  while (arena == 0) {
    arena = uint64_t{random()} << 32 | random();
  }
  return arena;
}

}  // namespace lamina::control
