// SPDX-License-Identifier: Apache-2.0
//
// Fiber: a stack of its own, on which a thread of an emulated block runs until it waits. A switch
// is a few instructions (fiber.cc, Boost.Context). The C library's swapcontext() asks the kernel
// for the signal mask each time, which took four fifths of the emulation's time; sanitizers know
// that one alone, and get it (fiber_sanitized.cc).
//
// Threading: a fiber is resumed by the thread that began it.

#pragma once

#include <memory>

namespace lamina::cuda_emulation {

class Fiber {
 public:
  using Body = void (*)();

  Fiber();
  Fiber(Fiber&& other) noexcept;
  ~Fiber();

  // Has the next Resume() call `body`, which ends with Leave() and is not resumed then. What ran
  // here before is forgotten.
  void Begin(Body body);
  // Runs the fiber until it leaves. Not from a fiber.
  void Resume();
  // Goes back to where Resume() was called; returns at the next one. From within.
  void Leave();

 private:
  struct Stack;
  std::unique_ptr<Stack> stack_;
};

}  // namespace lamina::cuda_emulation
