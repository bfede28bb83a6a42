// SPDX-License-Identifier: Apache-2.0
//
// What `lamina top` does on a terminal besides its picture: it fits the window, keys end it, and
// the last minutes stay in sight.
//
// Threading: one thread.

#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"

namespace lamina::cli {

struct ScreenSize {
  size_t columns = 80;
  size_t rows = 24;
};

// The size of the terminal on stdout; 80 x 24 where it does not say.
ScreenSize SizeOfScreen();

// The picture cut to the window: no line longer than its columns, colour not counted, and at most
// rows - 1 lines, of which the last then says how many are left out. `last` is a line that stands
// below in any case; empty for none.
std::string FitScreen(absl::string_view picture, const ScreenSize& size,
                      absl::string_view last = "");

// Tokens a second of the last looks, as one line of at most `columns` characters, from " " for none
// to "@" for the most of them.
class RateHistory {
 public:
  void Add(double rate);
  std::string Line(size_t columns) const;

 private:
  std::deque<double> rates_;  // At most kLooksMax, the newest last.
};

// Takes keys of the terminal on stdin one by one, without showing them, for as long as it lives.
// Where stdin is none, there are no keys.
class KeyWatch {
 public:
  KeyWatch();
  ~KeyWatch();
  KeyWatch(const KeyWatch&) = delete;
  KeyWatch& operator=(const KeyWatch&) = delete;

  // Waits that long, or until `ended` says so. Whether a key asked to leave: q or Q.
  bool WaitForQuit(Nanos time, absl::FunctionRef<bool()> ended);

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;  // The terminal as it was; null where there is none.
};

}  // namespace lamina::cli
