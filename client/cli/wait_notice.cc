// SPDX-License-Identifier: Apache-2.0
#include "client/cli/wait_notice.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/cli/terminal.h"
#include "common/clock.h"
#include "common/remaining_time.h"

namespace lamina::cli {

std::string WaitLine(absl::string_view what, uint32_t done, uint32_t all, double seconds) {
  std::string line = absl::StrFormat("%s, %.0f s", what, seconds);
  if (done == 0) {
    return line;
  }
  absl::StrAppendFormat(&line, ", %d of %d tokens of the prompt", done, std::max(done, all));
  const std::string left = RemainingTime(done, all, seconds);
  return left.empty() ? line : absl::StrCat(line, ", ", left);
}

struct WaitNotice::State {
  absl::Notification end;
  std::atomic<uint32_t> prompt_tokens{0};
  std::atomic<uint32_t> prompt_tokens_done{0};
  std::thread thread;
};

WaitNotice::WaitNotice(const std::string& what) {
  if (!Terminal::Error().interactive()) {
    return;
  }
  state_ = std::make_unique<State>();
  state_->thread = std::thread([state = state_.get(), what] {
    const Nanos start = RealClock().Now();
    ProgressLine line;
    while (!state->end.WaitForNotificationWithTimeout(absl::Milliseconds(500))) {
      const uint32_t done = state->prompt_tokens_done.load(std::memory_order_relaxed);
      const uint32_t all = state->prompt_tokens.load(std::memory_order_relaxed);
      line.Show(WaitLine(what, done, all, ToSeconds(RealClock().Now() - start)));
    }
  });
}

WaitNotice::~WaitNotice() { End(); }

void WaitNotice::PromptDone(uint32_t tokens, uint32_t all) {
  if (state_ != nullptr) {
    state_->prompt_tokens.store(all, std::memory_order_relaxed);
    state_->prompt_tokens_done.store(tokens, std::memory_order_relaxed);
  }
}

void WaitNotice::End() {
  if (state_ != nullptr) {
    state_->end.Notify();
    state_->thread.join();
    state_.reset();
  }
}

}  // namespace lamina::cli
