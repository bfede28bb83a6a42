// SPDX-License-Identifier: Apache-2.0
#include "client/cli/terminal.h"

#include <unistd.h>

namespace lamina::cli {
namespace {

bool& WithColours() {
  static bool with_colours = true;
  return with_colours;
}

}  // namespace

Terminal::Terminal(FILE* file) : interactive_(isatty(fileno(file)) == 1) {}

const Terminal& Terminal::Output() {
  static const Terminal terminal(stdout);
  return terminal;
}

const Terminal& Terminal::Error() {
  static const Terminal terminal(stderr);
  return terminal;
}

void Terminal::LeaveColoursOut() { WithColours() = false; }

std::string Terminal::Paint(const char* code, const std::string& text) const {
  return interactive_ && WithColours() ? std::string("\033[") + code + "m" + text + "\033[0m"
                                       : text;
}

bool StdinIsTerminal() { return isatty(STDIN_FILENO) == 1; }

void ProgressLine::Show(const std::string& text) {
  if (Terminal::Error().interactive()) {
    std::fprintf(stderr, "\r\033[K%s", Terminal::Error().Dim(text).c_str());
    shown_ = true;
  }
}

void ProgressLine::Clear() {
  if (shown_) {
    std::fputs("\r\033[K", stderr);
    shown_ = false;
  }
}

}  // namespace lamina::cli
