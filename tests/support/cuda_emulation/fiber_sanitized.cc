// SPDX-License-Identifier: Apache-2.0
#include <ucontext.h>

#include <array>
#include <cstddef>

#include "tests/support/cuda_emulation/fiber.h"

namespace lamina::cuda_emulation {

struct Fiber::Stack {
  ucontext_t inside;
  ucontext_t outside;
  alignas(64) std::array<std::byte, 64 * 1024> bytes;
};

Fiber::Fiber() : stack_(std::make_unique<Stack>()) {}
Fiber::Fiber(Fiber&& other) noexcept = default;
Fiber::~Fiber() = default;

void Fiber::Begin(Body body) {
  getcontext(&stack_->inside);
  stack_->inside.uc_stack.ss_sp = stack_->bytes.data();
  stack_->inside.uc_stack.ss_size = stack_->bytes.size();
  stack_->inside.uc_link = nullptr;
  makecontext(&stack_->inside, body, 0);
}

void Fiber::Resume() { swapcontext(&stack_->outside, &stack_->inside); }

void Fiber::Leave() { swapcontext(&stack_->inside, &stack_->outside); }

}  // namespace lamina::cuda_emulation
