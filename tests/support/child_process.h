// SPDX-License-Identifier: Apache-2.0
//
// Child: a second process of a test, that talks with it by two pipes and dies by SIGKILL.
//
// Forked, it goes on from where the test is; so children come before the test makes what does not
// survive fork(), such as a library's threads. Executed, it is this program again, running the same
// test up to the Child of its role: for libraries that do not survive fork() at all, once they have
// been used, as CUDA. There, what a test does before its children is done in each.

#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace lamina::test_support {

// One end of a pair of pipes. Descriptors go over it, as they go over the control plane.
class Pipe {
 public:
  Pipe(int in, int out) : in_(in), out_(out) {}

  void Send(const std::string& bytes) const;
  // Empty when the other end is gone.
  std::string Receive() const;

 private:
  bool ReadAll(char* data, size_t size) const;

  const int in_;
  const int out_;
};

enum class ChildStart : uint8_t { kFork, kExecute };

// A process that runs `body` and exits with 0 if nothing in it failed.
class Child {
 public:
  using Body = std::function<void(const Pipe& pipe)>;

  // `role` tells the children of a test apart; those of one role run the same body.
  Child(const std::string& role, ChildStart start, const Body& body);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  Pipe pipe_to() const { return {to_parent_[0], to_child_[1]}; }

  // Returns when it is dead and its memory is gone.
  void Kill();
  bool ExitedWell();

 private:
  std::array<int, 2> to_child_ = {-1, -1};
  std::array<int, 2> to_parent_ = {-1, -1};
  pid_t pid_ = -1;
};

}  // namespace lamina::test_support
