// SPDX-License-Identifier: Apache-2.0
//
// AmxTrap: runs the instructions of AMX on processors that have none. As long as it lives, an
// instruction of tiles that this thread meets, which is illegal there, is decoded and done by
// EmulatedTiles. So a test can show that the loop for the processor's tiles is the one that was
// emulated: registers, addresses, shapes, and that the tiles are given back.
//
// Slow: a signal for each instruction. One at a time, in one thread.

#pragma once

#include <csignal>
#include <cstddef>

#include "kernels/cpu/tile_emulation.h"

namespace lamina::kernels::cpu {

class AmxTrap {
 public:
  AmxTrap();
  ~AmxTrap();
  AmxTrap(const AmxTrap&) = delete;
  AmxTrap& operator=(const AmxTrap&) = delete;

  size_t instructions() const;
  size_t dots() const;
  // Whether the tiles are configured: the last TILERELEASE is not behind the last LDTILECFG.
  bool configured() const;

 private:
  struct sigaction before_ = {};
};

}  // namespace lamina::kernels::cpu
