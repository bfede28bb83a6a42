// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulation/fiber.h"

#include <array>
#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

namespace lamina::cuda_emulation {

namespace context = boost::context::detail;

struct Fiber::Stack {
  static void Enter(context::transfer_t from) {
    auto* stack = static_cast<Stack*>(from.data);
    stack->outside = from.fctx;
    stack->body();
  }

  Body body = nullptr;
  context::fcontext_t inside = nullptr;
  context::fcontext_t outside = nullptr;
  alignas(64) std::array<std::byte, 64 * 1024> bytes;
};

Fiber::Fiber() : stack_(std::make_unique<Stack>()) {}
Fiber::Fiber(Fiber&& other) noexcept = default;
Fiber::~Fiber() = default;

void Fiber::Begin(Body body) {
  stack_->body = body;
  stack_->inside = context::make_fcontext(stack_->bytes.data() + stack_->bytes.size(),
                                          stack_->bytes.size(), &Stack::Enter);
}

void Fiber::Resume() { stack_->inside = context::jump_fcontext(stack_->inside, stack_.get()).fctx; }

void Fiber::Leave() { stack_->outside = context::jump_fcontext(stack_->outside, nullptr).fctx; }

}  // namespace lamina::cuda_emulation
