// SPDX-License-Identifier: Apache-2.0
//
// SideWork: what takes longer than a connection's turn, done off the gateway's thread: large
// bodies are parsed, and large answers written, by a few threads that serve nothing else. What
// is small is done at once.
//
// Threading: called in the gateway's thread; `make` runs in any, so it owns what it reads; `take`
//            runs in the gateway's.
// Ownership: what still waits when this ends is forgotten; what runs is awaited.
// Limits:    a newcomer is taken while fewer than kWaitingMax wait; answers are always, and there
//            are no more of them than connections.

#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"

namespace lamina::gateway {

// Runs a function in the gateway's thread, later. Called from other threads.
using PostFunction = std::function<void(std::function<void()> work)>;

class SideWork {
 public:
  static constexpr size_t kThreads = 2;
  static constexpr size_t kWaitingMax = 64;
  // Bytes of text for which the worst that a body may be takes 10 ms or so.
  static constexpr size_t kSmallBytesMax = 16 << 10;

  // What `post` was given may run after this has ended.
  explicit SideWork(PostFunction post);
  ~SideWork();
  SideWork(const SideWork&) = delete;
  SideWork& operator=(const SideWork&) = delete;

  // Does what a newcomer brings: calls take(make()), where `make` reads or writes about `bytes` of
  // text: now if they are few. Neither is called when it fails.
  // Errors: kResourceExhausted  too many wait already.
  template <typename Make, typename Take>
  absl::Status Do(size_t bytes, Make make, Take take) {
    if (bytes <= kSmallBytesMax) {
      take(make());
      return absl::OkStatus();
    }
    return Add(JobOf(std::move(make), std::move(take)));
  }

  // Does so for an answer, which waits behind any number: all that it costs has been spent.
  template <typename Make, typename Take>
  void DoForAnswer(size_t bytes, Make make, Take take) {
    if (bytes <= kSmallBytesMax) {
      take(make());
    } else {
      AddForAnswer(JobOf(std::move(make), std::move(take)));
    }
  }

 private:
  struct Job {
    std::function<void()> work;
    std::function<void()> done;  // Posted when the work is.
  };
  class Queue;

  template <typename Make, typename Take>
  static Job JobOf(Make make, Take take) {
    auto made = std::make_shared<std::optional<std::invoke_result_t<Make>>>();
    return {.work = [made, make = std::move(make)]() mutable { made->emplace(make()); },
            .done = [made, take = std::move(take)]() mutable { take(*std::move(*made)); }};
  }

  absl::Status Add(Job job);
  void AddForAnswer(Job job);

  const std::unique_ptr<Queue> queue_;
};

}  // namespace lamina::gateway
