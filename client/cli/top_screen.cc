// SPDX-License-Identifier: Apache-2.0
#include "client/cli/top_screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/terminal.h"

namespace lamina::cli {
namespace {

constexpr size_t kLooksMax = 240;
constexpr absl::string_view kLevels = " .:-=+*#%@";
constexpr int kLookForKeysMs = 50;
constexpr char kEndOfColour[] = "\033[0m";

// The first `columns` characters of a line; what sets colours takes no room.
std::string Cut(absl::string_view line, size_t columns) {
  std::string out;
  size_t shown = 0;
  bool coloured = false;
  for (size_t i = 0; i < line.size();) {
    if (line[i] == '\033') {
      const size_t end = std::min(line.find('m', i), line.size() - 1) + 1;
      const absl::string_view sequence = line.substr(i, end - i);
      absl::StrAppend(&out, sequence);
      coloured = sequence != kEndOfColour;
      i = end;
      continue;
    }
    const bool begins = (static_cast<unsigned char>(line[i]) & 0xc0u) != 0x80u;  // A character.
    if (begins && ++shown > columns) {
      break;
    }
    out.push_back(line[i++]);
  }
  return coloured ? out + kEndOfColour : out;
}

// The terminal as it was. A local static: made before the handler below can run.
termios& BeforeKeys() {
  static termios before = {};
  return before;
}

// Else the shell would have a terminal that shows nothing of what is typed. A job in the background
// would stop here, and its shell has set the terminal already.
void LeaveTerminalAndEnd(int number) {
  const pid_t in_front = tcgetpgrp(STDIN_FILENO);
  if (in_front < 0 || in_front == getpgrp()) {
    tcsetattr(STDIN_FILENO, TCSANOW, &BeforeKeys());
  }
  std::signal(number, SIG_DFL);
  std::raise(number);  // Once the handler has returned.
}

}  // namespace

ScreenSize SizeOfScreen() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    return {};
  }
  return {.columns = size.ws_col, .rows = size.ws_row};
}

std::string FitScreen(absl::string_view picture, const ScreenSize& size, absl::string_view last) {
  std::vector<absl::string_view> lines = absl::StrSplit(picture, '\n');
  if (!lines.empty() && lines.back().empty()) {
    lines.pop_back();
  }
  const size_t below = last.empty() ? 1 : 2;  // The cursor stands below.
  const size_t room = std::max(size.rows, below + 1) - below;
  const size_t shown = lines.size() <= room ? lines.size() : room - 1;
  std::string out;
  for (size_t i = 0; i < shown; ++i) {
    absl::StrAppend(&out, Cut(lines[i], size.columns), "\n");
  }
  if (shown < lines.size()) {
    absl::StrAppend(
        &out, Cut(absl::StrFormat("... %d more lines", lines.size() - shown), size.columns), "\n");
  }
  if (!last.empty()) {
    absl::StrAppend(&out, Cut(last, size.columns), "\n");
  }
  return out;
}

void RateHistory::Add(double rate) {
  rates_.push_back(std::max(0.0, rate));
  if (rates_.size() > kLooksMax) {
    rates_.pop_front();
  }
}

std::string RateHistory::Line(size_t columns) const {
  const std::string head = "tokens/s ";
  const size_t room = columns > head.size() + 16 ? columns - head.size() - 16 : 1;
  const size_t first = rates_.size() > room ? rates_.size() - room : 0;
  double most = 0;
  for (size_t i = first; i < rates_.size(); ++i) {
    most = std::max(most, rates_[i]);
  }
  std::string bars;
  for (size_t i = first; i < rates_.size(); ++i) {
    const double share = most > 0 ? rates_[i] / most : 0;
    bars.push_back(
        kLevels[static_cast<size_t>(share * static_cast<double>(kLevels.size() - 1) + 0.5)]);
  }
  return absl::StrCat(head, bars, absl::StrFormat("  max %.1f", most));
}

struct KeyWatch::Saved {
  termios before = {};
  void (*on_termination)(int) = SIG_DFL;
};

KeyWatch::KeyWatch() {
  auto saved = std::make_unique<Saved>();
  if (!StdinIsTerminal() || tcgetattr(STDIN_FILENO, &saved->before) != 0) {
    return;
  }
  termios keys = saved->before;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // Ctrl-C stays a signal.
  keys.c_cc[VMIN] = 0;
  keys.c_cc[VTIME] = 0;
  BeforeKeys() = saved->before;
  saved->on_termination = std::signal(SIGTERM, LeaveTerminalAndEnd);
  if (tcsetattr(STDIN_FILENO, TCSANOW, &keys) == 0) {
    saved_ = std::move(saved);
  } else {
    std::signal(SIGTERM, saved->on_termination);
  }
}

KeyWatch::~KeyWatch() {
  if (saved_ != nullptr) {
    tcsetattr(STDIN_FILENO, TCSANOW, &saved_->before);
    std::signal(SIGTERM, saved_->on_termination);
  }
}

bool KeyWatch::WaitForQuit(Nanos time, absl::FunctionRef<bool()> ended) {
  const Nanos end = RealClock().Now() + time;
  while (!ended()) {
    const Nanos left = end - RealClock().Now();
    if (left <= 0) {
      return false;
    }
    const auto milliseconds =
        static_cast<int>(std::clamp<Nanos>(left / Millis(1), 1, kLookForKeysMs));
    pollfd keys = {.fd = saved_ != nullptr ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0};
    if (poll(&keys, 1, milliseconds) > 0) {
      char key = 0;
      if (read(STDIN_FILENO, &key, 1) != 1) {
        saved_.reset();  // The terminal is gone: only Ctrl-C and the end are left.
      } else if (key == 'q' || key == 'Q') {
        return true;
      }
    }
  }
  return false;
}

}  // namespace lamina::cli
