// SPDX-License-Identifier: Apache-2.0
//
// RetryTimes: when what was set aside is tried again, and who comes and goes. A pure state machine;
// its owner passes the time in.
//
// What made a node fail may be over: a cable is plugged in again, another process has freed memory.
// Each try costs everybody an epoch, so the pauses double from kFirst to kMost. What has worked for
// kMost since its last try begins from kFirst again.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/clock.h"

namespace lamina::core {

class RetryTimes {
 public:
  static constexpr Nanos kFirst = Seconds(10);
  static constexpr Nanos kMost = Seconds(300);
  static constexpr uint32_t kLeavesMax = 3;

  // Sets `name` aside. Returns the pause until it is tried again.
  Nanos SetAside(const std::string& name, Nanos now);
  // Names whose pause is over: they are on trial from now on.
  std::vector<std::string> Due(Nanos now);
  // Whether it was tried again and no step has been done since.
  bool OnTrial(const std::string& name) const;
  void NoteProgress();
  // It left, soon after it came or later: what comes back under its name is another process. Its
  // pauses are kept where it has left soon kLeavesMax times in a row.
  void NoteLeft(const std::string& name, bool soon);
  bool ComesAndGoes(const std::string& name) const;
  // Who comes back under its name is not known.
  void Forget(const std::string& name) { entries_.erase(name); }

 private:
  struct Entry {
    Nanos pause = 0;
    Nanos due = 0;
    Nanos tried = 0;
    bool aside = false;
    bool trial = false;
    uint32_t leaves = 0;  // In a row, soon after it came.
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace lamina::core
