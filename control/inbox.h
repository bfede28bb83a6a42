// SPDX-License-Identifier: Apache-2.0
//
// Inbox: hands objects from any threads to one data thread, without a lock on the data thread's
// side.
//
// A stack of nodes that the consumer takes whole and reverses: items of one producer keep their
// order.
//
// Threading: Push from any thread; TakeAll and WaitForItem from one thread.
// Limits:    unbounded by itself; producers are bounded by the protocol (plan_ahead steps of each
// lane).

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/word_sleep.h"

namespace lamina::control {

template <typename T>
class Inbox {
 public:
  Inbox() = default;
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;
  ~Inbox() {
    std::vector<T> rest;
    TakeAll(rest);
  }

  void Push(T item) {
    auto* node = new Node{std::move(item), nullptr};
    node->next = head_.load(std::memory_order_relaxed);
    while (!head_.compare_exchange_weak(node->next, node, std::memory_order_release,
                                        std::memory_order_relaxed)) {
    }
    Wake();
  }

  // Lets WaitForItem() return without an item.
  void Wake() {
    wakes_.fetch_add(1, std::memory_order_release);
    WakeSleepers(wakes_);
  }

  bool empty() const { return head_.load(std::memory_order_relaxed) == nullptr; }

  // Appends everything that has been pushed, oldest first.
  void TakeAll(std::vector<T>& out) {
    Node* node = head_.exchange(nullptr, std::memory_order_acquire);
    const size_t first = out.size();
    while (node != nullptr) {
      std::unique_ptr<Node> owned(node);
      out.push_back(std::move(owned->item));
      node = owned->next;
    }
    std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
  }

  // Sleeps until Push() or Wake() has been called since the last return of this function, for
  // `most` at most; it may return without a reason.
  void WaitForItem(Nanos most) {
    if (wakes_.load(std::memory_order_acquire) == wakes_seen_) {
      SleepOnWord(wakes_, wakes_seen_, most);
    }
    wakes_seen_ = wakes_.load(std::memory_order_acquire);
  }

 private:
  struct Node {
    T item;
    Node* next;
  };
  std::atomic<Node*> head_{nullptr};
  std::atomic<uint32_t> wakes_{0};
  uint32_t wakes_seen_ = 0;  // Consumer only.
};

}  // namespace lamina::control
