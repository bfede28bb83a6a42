// SPDX-License-Identifier: Apache-2.0
#include "coordinator/waiting_calls.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace lamina::coordinator {

void WaitingCalls::Enter(const std::string& request_id, uint64_t key,
                         std::function<void()> cancel) {
  const std::lock_guard lock(mutex_);
  calls_.insert_or_assign({request_id, key}, std::move(cancel));
}

void WaitingCalls::Leave(const std::string& request_id, uint64_t key) {
  const std::lock_guard lock(mutex_);
  calls_.erase({request_id, key});
}

bool WaitingCalls::Cancel(const std::string& request_id) {
  std::vector<std::function<void()>> cancels;
  {
    const std::lock_guard lock(mutex_);
    auto call = calls_.lower_bound({request_id, 0});
    while (call != calls_.end() && call->first.first == request_id) {
      cancels.push_back(std::move(call->second));
      call = calls_.erase(call);
    }
  }
  for (const std::function<void()>& cancel : cancels) {
    cancel();
  }
  return !cancels.empty();
}

absl::Status WaitingCalls::BeginForm() {
  const std::lock_guard lock(mutex_);
  if (forms_ >= forms_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(forms_,
                     " requests wait for their forms to be compiled, which is the limit "
                     "(limits.running_max and waiting_max); try again later"));
  }
  ++forms_;
  return absl::OkStatus();
}

void WaitingCalls::EndForm() {
  const std::lock_guard lock(mutex_);
  --forms_;
}

}  // namespace lamina::coordinator
