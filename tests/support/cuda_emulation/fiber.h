// SPDX-License-Identifier: Apache-2.0
//
// Fiber: a stack of its own, on which a thread of an emulated block runs until it waits. A switch
// is a few instructions (Boost.Context); the C library's swapcontext() asks the kernel for the
// signal mask each time, which took four fifths of what the emulation took. Sanitizers know that
// one alone, and get it.
//
// Threading: a fiber is resumed by the thread that began it.

#pragma once

#include <cstddef>
#include <memory>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LAMINA_FIBER_OF_C_LIBRARY 1
#include <ucontext.h>
#else
#include <boost/context/detail/fcontext.hpp>
#endif

namespace lamina::cuda_emulation {

class Fiber {
 public:
  using Body = void (*)();

  // Has the next Resume() call `body`, which ends with Leave() and is not resumed then. What ran
  // here before is forgotten.
  void Begin(Body body);
  // Runs the fiber until it leaves. Not from a fiber.
  void Resume();
  // Goes back to where Resume() was called; returns at the next one. From within.
  void Leave();

 private:
  static constexpr size_t kStackBytes = 64 * 1024;

  std::unique_ptr<std::byte[]> stack_;
#ifdef LAMINA_FIBER_OF_C_LIBRARY
  ucontext_t inside_;
  ucontext_t outside_;
#else
  static void Enter(boost::context::detail::transfer_t from);

  Body body_ = nullptr;
  boost::context::detail::fcontext_t inside_ = nullptr;
  boost::context::detail::fcontext_t outside_ = nullptr;
#endif
};

}  // namespace lamina::cuda_emulation
