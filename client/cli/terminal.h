// SPDX-License-Identifier: Apache-2.0
//
// Terminal: colour and progress, only where a person looks at a terminal; plain bytes elsewhere.
//
// Threading: one thread.

#pragma once

#include <cstdio>
#include <string>

namespace lamina::cli {

class Terminal {
 public:
  static const Terminal& Output();  // stdout
  static const Terminal& Error();   // stderr
  // From now on text stays plain on terminals too. Before other threads are there.
  static void LeaveColoursOut();

  bool interactive() const { return interactive_; }
  std::string Bold(const std::string& text) const { return Paint("1", text); }
  std::string Dim(const std::string& text) const { return Paint("2", text); }
  std::string Red(const std::string& text) const { return Paint("31", text); }
  std::string Green(const std::string& text) const { return Paint("32", text); }
  std::string Yellow(const std::string& text) const { return Paint("33", text); }

 private:
  explicit Terminal(FILE* file);
  std::string Paint(const char* code, const std::string& text) const;
  const bool interactive_;
};

bool StdinIsTerminal();

// A line on stderr that each Show() replaces. Silent when stderr is not a terminal.
class ProgressLine {
 public:
  ProgressLine() = default;
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Show(const std::string& text);
  void Clear();

 private:
  bool shown_ = false;
};

}  // namespace lamina::cli
