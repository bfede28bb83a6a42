// SPDX-License-Identifier: Apache-2.0
//
// EventLoop: one thread that runs what other threads post. It turns when something was posted, and
// after a pause at the latest, which a turn may shorten for the next one: each turn runs
// `begin_turn`, the events that had been posted when it began, in their order, and `end_turn`. So
// an owner whose state only its loop touches needs no lock, and what it does by the clock it does
// in its turns.
//
// Threading: Post() from any thread; Start() and Stop() from the owner's. What the loop runs
//            runs in its thread, without a lock, and may post: to the next turn.

#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "common/clock.h"

namespace lamina::coordinator {

class EventLoop {
 public:
  using Event = std::function<void()>;

  struct Options {
    Nanos pause_max = Seconds(1);  // Between two turns.
    Event begin_turn;
    Event end_turn;
  };

  explicit EventLoop(Options options);
  ~EventLoop() { Stop(); }
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // What was posted before runs in the first turn.
  void Start();

  void Post(Event event);

  // From what the loop runs: the next turn begins after so long at the latest.
  void PauseAtMost(Nanos pause) { pause_ = std::min(pause_, pause); }

  // Ends the thread. What was posted before runs in a last turn, or never; what is posted
  // afterwards never does.
  void Stop();

 private:
  void Run();

  const Options options_;
  Nanos pause_ = 0;  // Before the next turn. Touched by the loop's thread only.
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Event> queue_;  // Guarded by mutex_, as is stopping_.
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lamina::coordinator
