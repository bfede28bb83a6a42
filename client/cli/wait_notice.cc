// SPDX-License-Identifier: Apache-2.0
#include "client/cli/wait_notice.h"

#include <atomic>
#include <thread>

#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/cli/terminal.h"
#include "common/clock.h"

namespace lamina::cli {

struct WaitNotice::State {
  absl::Notification end;
  std::atomic<uint32_t> prompt_tokens{0};
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
      const uint32_t done = state->prompt_tokens.load(std::memory_order_relaxed);
      const std::string prompt =
          done == 0 ? "" : absl::StrFormat(", %d tokens of the prompt done", done);
      line.Show(
          absl::StrFormat("%s%s, %.0f s", what, prompt, ToSeconds(RealClock().Now() - start)));
    }
  });
}

WaitNotice::~WaitNotice() { End(); }

void WaitNotice::PromptDone(uint32_t tokens) {
  if (state_ != nullptr) {
    state_->prompt_tokens.store(tokens, std::memory_order_relaxed);
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
