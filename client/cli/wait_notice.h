// SPDX-License-Identifier: Apache-2.0
//
// WaitNotice: tells a person at a terminal that a wait goes on, and for how long: long prompts take
// their time before the first token.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace lamina::cli {

class WaitNotice {
 public:
  // Shows "<what>, 3 s" on stderr from half a second on, when stderr is a terminal.
  explicit WaitNotice(const std::string& what);
  ~WaitNotice();
  WaitNotice(const WaitNotice&) = delete;
  WaitNotice& operator=(const WaitNotice&) = delete;
  // Adds how much of the prompt has been worked on to the notice.
  void PromptDone(uint32_t tokens);
  // Takes the notice away. Later calls do nothing.
  void End();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lamina::cli
