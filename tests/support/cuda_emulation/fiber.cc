// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulation/fiber.h"

namespace lamina::cuda_emulation {

#ifdef LAMINA_FIBER_OF_C_LIBRARY

void Fiber::Begin(Body body) {
  if (stack_ == nullptr) {
    stack_ = std::make_unique<std::byte[]>(kStackBytes);
  }
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_.get();
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  makecontext(&inside_, body, 0);
}

void Fiber::Resume() { swapcontext(&outside_, &inside_); }

void Fiber::Leave() { swapcontext(&inside_, &outside_); }

#else

namespace context = boost::context::detail;

void Fiber::Enter(context::transfer_t from) {
  auto* fiber = static_cast<Fiber*>(from.data);
  fiber->outside_ = from.fctx;
  fiber->body_();
}

void Fiber::Begin(Body body) {
  if (stack_ == nullptr) {
    stack_ = std::make_unique<std::byte[]>(kStackBytes);
  }
  body_ = body;
  inside_ = context::make_fcontext(stack_.get() + kStackBytes, kStackBytes, &Fiber::Enter);
}

void Fiber::Resume() { inside_ = context::jump_fcontext(inside_, this).fctx; }

void Fiber::Leave() { outside_ = context::jump_fcontext(outside_, nullptr).fctx; }

#endif

}  // namespace lamina::cuda_emulation
