// SPDX-License-Identifier: Apache-2.0
//
// Interrupts: Ctrl-C as a call in a thread of ours, where locks and RPCs are allowed.
//
// Made first in main, before any other thread, because it blocks SIGINT and threads inherit that.
// With no handler set, Ctrl-C ends the process with status 130.
//
// Threading: handlers run in the thread of this class. Scoped's end waits for a running handler.

#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace lamina::cli {

class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // While it lives, Ctrl-C calls the handler. One at a time.
  class Scoped {
   public:
    Scoped(Interrupts& interrupts, std::function<void()> handler) : interrupts_(interrupts) {
      interrupts_.SetHandler(std::move(handler));
    }
    ~Scoped() { interrupts_.SetHandler(nullptr); }
    Scoped(const Scoped&) = delete;
    Scoped& operator=(const Scoped&) = delete;

   private:
    Interrupts& interrupts_;
  };

 private:
  void SetHandler(std::function<void()> handler);
  void Watch();

  int signals_ = -1;  // signalfd of SIGINT
  int stop_ = -1;     // eventfd
  absl::Mutex mu_;
  std::function<void()> handler_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace lamina::cli
