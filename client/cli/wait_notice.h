// SPDX-License-Identifier: Apache-2.0
//
// WaitNotice: tells a person at a terminal that a wait goes on, and for how long: long prompts take
// their time before the first token.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace lamina::cli {

// "waiting, 4 s, 300 of 1200 tokens of the prompt, 12 s left": of a prompt only what is known.
std::string WaitLine(absl::string_view what, uint32_t done, uint32_t all, double seconds);

class WaitNotice {
 public:
  // Shows "<what>, 3 s" on stderr from half a second on, when stderr is a terminal.
  explicit WaitNotice(const std::string& what);
  ~WaitNotice();
  WaitNotice(const WaitNotice&) = delete;
  WaitNotice& operator=(const WaitNotice&) = delete;
  // Adds to the notice how much of a prompt of `all` tokens has been worked on, and the time left.
  void PromptDone(uint32_t tokens, uint32_t all);
  // Takes the notice away. Later calls do nothing.
  void End();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lamina::cli
