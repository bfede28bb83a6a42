// SPDX-License-Identifier: Apache-2.0
//
// WaitingCalls: the calls whose requests the engine does not know yet: their texts wait to be
// tokenized, or their forms to be compiled. They too can be cancelled by their ids, and those that
// wait for forms, each with its prompt, are bounded.
//
// Threading: any.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace lamina::coordinator {

class WaitingCalls {
 public:
  // So many may wait for their forms.
  explicit WaitingCalls(size_t forms_max) : forms_max_(forms_max) {}

  // The call waits from now on. Several of one id may: the engine takes the first that comes to it.
  // `key` tells them apart. `cancel` must not wait; it is called once at most, by Cancel().
  void Enter(const std::string& request_id, uint64_t key, std::function<void()> cancel);
  // The call waits no longer, if it still did.
  void Leave(const std::string& request_id, uint64_t key);
  // Cancels all calls of that id that wait, which have left then. Whether there were any.
  bool Cancel(const std::string& request_id);

  // Another one waits for its form, until EndForm().
  // Errors: kResourceExhausted  so many do as may.
  absl::Status BeginForm();
  void EndForm();

 private:
  const size_t forms_max_;
  std::mutex mutex_;
  std::map<std::pair<std::string, uint64_t>, std::function<void()>> calls_;  // By id and key.
  size_t forms_ = 0;
};

}  // namespace lamina::coordinator
