// SPDX-License-Identifier: Apache-2.0
//
// GrammarCache: compiles forms on a thread of its own, each once, and keeps the latest.
//
// Threading: any.

#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/output_form.h"
#include "common/thread_beat.h"
#include "model/grammar/grammar.h"

namespace lamina::model {

class GrammarCache {
 public:
  using Result = absl::StatusOr<std::shared_ptr<const Grammar>>;
  using Maker = std::function<absl::StatusOr<std::unique_ptr<GrammarCompiler>>()>;

  struct Options {
    size_t forms_max = 64;  // Kept, the latest used first.
    // Refuses what took more of the processor's time, and what is slow to follow; 0: nothing.
    Nanos cpu_max = 0;
    size_t bytes_max = 0;  // Refuses what is larger; 0: nothing.
    size_t queue_max = 0;  // Forms that wait to be compiled; 0: any number.
  };

  // `make` runs on the cache's thread when the first form comes; without one there are no forms.
  GrammarCache(Maker make, Options options);
  // Waits for the form that is being compiled; those that wait get kCancelled.
  ~GrammarCache();
  GrammarCache(const GrammarCache&) = delete;
  GrammarCache& operator=(const GrammarCache&) = delete;

  // Begins to compile unless it is there, is being made, or is known to be wrong. `done` is called
  // once, from here or from the cache's thread. `gone`, if there is one, says whether nobody waits
  // for `done` any more: a form for which that is so of all is not compiled. It may be called from
  // the cache's thread until `done` is, must not wait or call the cache, and once true stays so.
  // Errors: those of `make` and of Compile().
  //         kInvalidArgument    it is beyond a limit of the options.
  //         kResourceExhausted  queue_max forms wait already, or the system has no thread left; try
  //                             again later.
  //         kCancelled          all who waited are gone, or the cache ends.
  void Prepare(const OutputForm& form, std::function<void(const Result&)> done = nullptr,
               std::function<bool()> gone = nullptr);

  // Prepares, and waits, in naps; at each it raises `beat`, if there is one.
  Result Get(const OutputForm& form, ThreadBeat* beat = nullptr);

 private:
  struct Waiter {
    std::function<void(const Result&)> done;
    std::function<bool()> gone;
  };
  struct Entry {
    OutputForm form;
    bool ready = false;
    bool ahead = false;  // Asked for by somebody who does not wait.
    Result result;
    std::vector<Waiter> waiting;
  };

  static void* Start(void* cache);
  void Run();
  // Guarded by mutex_, both.
  absl::Status MakeRoom();  // Lets another form wait; starts the thread.
  static bool IsWanted(const Entry& entry);
  Result Compile(const OutputForm& form);
  void Finish(const std::shared_ptr<Entry>& entry, Result result);

  const Maker make_;
  const Options options_;

  std::unique_ptr<GrammarCompiler> compiler_;  // The cache's thread.

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<Entry>> entries_;  // The latest used first.
  std::deque<std::shared_ptr<Entry>> to_do_;
  bool stopped_ = false;
  bool started_ = false;
  pthread_t thread_{};
};

}  // namespace lamina::model
