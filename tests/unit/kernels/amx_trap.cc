// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/amx_trap.h"

#include <ucontext.h>

#include <cstdint>
#include <cstring>

#include "common/check.h"

namespace lamina::kernels::cpu {
namespace {

struct State {
  EmulatedTiles tiles;
  size_t instructions = 0;
  size_t dots = 0;
};
State* state = nullptr;

// Numbers of general registers in instructions, as places in a signal's context.
constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                REG_R12, REG_R13, REG_R14, REG_R15};

// An instruction with a VEX prefix of three bytes. Source: Intel's Software Developer's Manual,
// volume 2, "Instruction format", and the pages of the instructions.
class Instruction {
 public:
  Instruction(const uint8_t* at, const greg_t* registers) : at_(at), registers_(registers) {
    valid_ = at[0] == 0xc4 && (at[1] & 0x1f) == 2 && (at[2] & 0x84) == 0;
    length_ = 5;
    if (valid_ && mod() != 3) {
      FindAddress();
    }
  }

  bool valid() const { return valid_; }
  int prefix() const { return at_[2] & 3; }  // 0: none, 1: 66, 2: F3, 3: F2.
  int opcode() const { return at_[3]; }
  int mod() const { return at_[4] >> 6; }
  size_t reg() const { return at_[4] >> 3 & 7; }
  size_t rm() const { return at_[4] & 7; }
  size_t third() const { return static_cast<size_t>(~at_[2] >> 3 & 15); }
  int length() const { return length_; }
  // Its memory operand; of tiles, the first row and the bytes between rows.
  void* address() const { return reinterpret_cast<void*>(base_ + index_); }
  void* rows() const { return reinterpret_cast<void*>(base_); }
  size_t stride() const { return index_; }

 private:
  uintptr_t Register(size_t low, int extension) const {
    const size_t number = low | ((at_[1] >> extension & 1) != 0 ? 0 : 8);
    return static_cast<uintptr_t>(registers_[kRegisters[number]]);
  }

  void FindAddress() {
    const bool from_next = mod() == 0 && rm() == 5;
    bool absolute = false;
    if (rm() == 4) {
      const uint8_t sib = at_[5];
      ++length_;
      absolute = mod() == 0 && (sib & 7) == 5;
      base_ = absolute ? 0 : Register(sib & 7, 5);
      const bool indexed = (sib >> 3 & 7) != 4 || (at_[1] >> 6 & 1) == 0;
      index_ = indexed ? Register(sib >> 3 & 7, 6) << (sib >> 6) : 0;
    } else if (!from_next) {
      base_ = Register(rm(), 5);
    }
    if (mod() == 1) {
      base_ += static_cast<uintptr_t>(static_cast<int8_t>(at_[length_]));
      ++length_;
    } else if (mod() == 2 || from_next || absolute) {
      int32_t displacement;
      std::memcpy(&displacement, at_ + length_, sizeof(displacement));
      base_ += static_cast<uintptr_t>(displacement);
      length_ += 4;
    }
    base_ += from_next ? reinterpret_cast<uintptr_t>(at_) + static_cast<uintptr_t>(length_) : 0;
  }

  const uint8_t* at_;
  const greg_t* registers_;
  bool valid_ = false;
  int length_ = 0;
  uintptr_t base_ = 0;
  uintptr_t index_ = 0;
};

// False: it is none of tiles.
bool Do(const Instruction& it) {
  EmulatedTiles& tiles = state->tiles;
  const bool registers = it.mod() == 3;
  if (it.opcode() == 0x49 && it.prefix() == 0 && !registers) {
    TileConfig config;
    std::memcpy(&config, it.address(), sizeof(config));
    tiles.Configure(config);
  } else if (it.opcode() == 0x49 && it.prefix() == 0) {
    tiles.Release();
  } else if (it.opcode() == 0x49 && it.prefix() == 3 && registers) {
    tiles.ZeroTile(it.reg());
  } else if (it.opcode() == 0x4b && it.prefix() == 3 && !registers) {
    tiles.LoadTile(it.reg(), it.rows(), it.stride());
  } else if (it.opcode() == 0x4b && it.prefix() == 2 && !registers) {
    tiles.StoreTile(it.reg(), it.rows(), it.stride());
  } else if (it.opcode() == 0x5c && it.prefix() == 2 && registers) {
    tiles.DotTiles(it.reg(), it.rm(), it.third());
    ++state->dots;
  } else {
    return false;
  }
  ++state->instructions;
  return true;
}

void OnIllegalInstruction(int /*signal*/, siginfo_t* /*info*/, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const Instruction it(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers);
  LAMINA_CHECK(it.valid() && Do(it));
  registers[REG_RIP] += it.length();
}

}  // namespace

AmxTrap::AmxTrap() {
  LAMINA_CHECK(state == nullptr);
  state = new State;
  struct sigaction action = {};
  action.sa_sigaction = OnIllegalInstruction;
  action.sa_flags = SA_SIGINFO;
  LAMINA_CHECK(sigaction(SIGILL, &action, &before_) == 0);
}

AmxTrap::~AmxTrap() {
  LAMINA_CHECK(sigaction(SIGILL, &before_, nullptr) == 0);
  delete state;
  state = nullptr;
}

size_t AmxTrap::instructions() const { return state->instructions; }
size_t AmxTrap::dots() const { return state->dots; }
bool AmxTrap::configured() const { return state->tiles.configured(); }

}  // namespace lamina::kernels::cpu
