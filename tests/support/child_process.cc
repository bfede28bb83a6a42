// SPDX-License-Identifier: Apache-2.0
#include "tests/support/child_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace lamina::test_support {
namespace {

// Set for a process that was executed: "ROLE IN OUT".
constexpr char kVariable[] = "LAMINA_TEST_CHILD";

[[noreturn]] void Run(const Child::Body& body, int in, int out) {
  // A test that ends early must leave no child behind.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  body(Pipe(in, out));
  _exit(testing::Test::HasFailure() ? 1 : 0);
}

// Where this process is the child of that role, runs it.
void RunIfExecuted(const std::string& role, const Child::Body& body) {
  const char* const executed = std::getenv(kVariable);
  if (executed == nullptr) {
    return;
  }
  const std::string text = executed;
  const size_t in = text.find(' ');
  const size_t out = text.rfind(' ');
  if (text.substr(0, in) == role) {
    Run(body, std::atoi(text.c_str() + in), std::atoi(text.c_str() + out));
  }
}

// This program, with the same test; made before fork(), behind which nothing may allocate.
class Command {
 public:
  Command(const std::string& role, int in, int out) {
    const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
    arguments_ = {"/proc/self/exe", "--gtest_brief=1",
                  std::string("--gtest_filter=") + test.test_suite_name() + "." + test.name()};
    for (char** variable = environ; *variable != nullptr; ++variable) {
      variables_.emplace_back(*variable);
    }
    variables_.push_back(std::string(kVariable) + "=" + role + " " + std::to_string(in) + " " +
                         std::to_string(out));
    argument_pointers_ = PointersTo(arguments_);
    variable_pointers_ = PointersTo(variables_);
  }

  [[noreturn]] void Execute() const {
    execve(argument_pointers_[0], argument_pointers_.data(), variable_pointers_.data());
    _exit(127);
  }

 private:
  static std::vector<char*> PointersTo(std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    for (std::string& text : texts) {
      pointers.push_back(text.data());
    }
    pointers.push_back(nullptr);
    return pointers;
  }

  std::vector<std::string> arguments_;
  std::vector<std::string> variables_;
  std::vector<char*> argument_pointers_;
  std::vector<char*> variable_pointers_;
};

}  // namespace

void Pipe::Send(const std::string& bytes) const {
  const uint32_t size = static_cast<uint32_t>(bytes.size());
  const std::string frame = std::string(reinterpret_cast<const char*>(&size), 4) + bytes;
  EXPECT_EQ(write(out_, frame.data(), frame.size()), static_cast<ssize_t>(frame.size()));
}

std::string Pipe::Receive() const {
  uint32_t size = 0;
  if (!ReadAll(reinterpret_cast<char*>(&size), 4)) {
    return "";
  }
  std::string bytes(size, '\0');
  return ReadAll(bytes.data(), size) ? bytes : "";
}

bool Pipe::ReadAll(char* data, size_t size) const {
  for (size_t have = 0; have < size;) {
    const ssize_t count = read(in_, data + have, size - have);
    if (count <= 0) {
      return false;
    }
    have += static_cast<size_t>(count);
  }
  return true;
}

Child::Child(const std::string& role, ChildStart start, const Body& body) {
  RunIfExecuted(role, body);
  if (std::getenv(kVariable) != nullptr) {
    return;  // Another role's: nobody talks with this one.
  }
  EXPECT_EQ(pipe(to_child_.data()), 0);
  EXPECT_EQ(pipe(to_parent_.data()), 0);
  const Command command(role, to_child_[0], to_parent_[1]);
  pid_ = fork();
  if (pid_ == 0) {
    close(to_child_[1]);
    close(to_parent_[0]);
    if (start == ChildStart::kExecute) {
      command.Execute();
    }
    Run(body, to_child_[0], to_parent_[1]);
  }
  close(to_child_[0]);
  close(to_parent_[1]);
}

Child::~Child() {
  Kill();
  close(to_child_[1]);
  close(to_parent_[0]);
}

void Child::Kill() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
}

bool Child::ExitedWell() {
  int status = -1;
  waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace lamina::test_support
