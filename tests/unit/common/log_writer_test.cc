// SPDX-License-Identifier: Apache-2.0
#include "common/log_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/log.h"

namespace lamina {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

// Against hanging, for a child that waits for its pipe.
constexpr unsigned kChildSeconds = 60;
constexpr int kLines = 30'000;  // Each has 100 bytes: more than a pipe and the queue take.

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  ~Pipe() { close(ends[0]); }
  void CloseWriting() { close(ends[1]); }
  // Until its end, or until `enough` is in it.
  std::string Read(const std::string& enough = "") {
    std::string text;
    char buffer[65536];
    ssize_t count = 0;
    while ((enough.empty() || text.find(enough) == std::string::npos) &&
           (count = read(ends[0], buffer, sizeof(buffer))) > 0) {
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }
  int ends[2] = {-1, -1};
};

// A pipe into which nothing fits any more.
void Fill(int descriptor) {
  const int flags = fcntl(descriptor, F_GETFL);
  fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
  const std::string zeros(4096, '0');
  while (write(descriptor, zeros.data(), zeros.size()) > 0) {
  }
  fcntl(descriptor, F_SETFL, flags);
}

// The status of a process that runs `body` with `stderr` as its standard error.
int StatusOfChild(int stderr_descriptor, const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kChildSeconds);
    dup2(stderr_descriptor, STDERR_FILENO);
    SetUpLogging("child", LogLevel::kInfo);
    WriteLogsOnAThread();
    body();
    _exit(99);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(LogWriterTest, WritesLinesInOrder) {
  Pipe pipe;
  LogWriter* const writer = LogWriter::Start(pipe.ends[1], [](uint64_t) { FAIL(); });
  std::string wanted;
  for (int i = 0; i < 1000; ++i) {
    writer->Add(absl::StrCat("line ", i, "\n"));
    absl::StrAppend(&wanted, "line ", i, "\n");
  }
  EXPECT_TRUE(writer->Flush());
  pipe.CloseWriting();
  EXPECT_EQ(pipe.Read(), wanted);
}

TEST(LogWriterTest, LinesThatDoNotFitAreDroppedAndCounted) {
  Pipe pipe;
  Fill(pipe.ends[1]);
  LogWriter* writer = nullptr;
  const auto tell = [&writer](uint64_t lines) {
    writer->Add(absl::StrCat("lost ", lines, " lines\n"));
  };
  writer = LogWriter::Start(pipe.ends[1], tell);
  const std::string line = "a line " + std::string(92, 'x') + "\n";

  for (int i = 0; i < kLines; ++i) {
    writer->Add(line);
  }
  EXPECT_FALSE(writer->Flush(std::chrono::milliseconds(1)));
  std::string text = pipe.Read(" lines\n");
  writer->Add("the last\n");
  text += pipe.Read("the last\n");

  int lines = 0;
  int lost = 0;
  for (const absl::string_view found : absl::StrSplit(text, '\n')) {
    lines += absl::StrContains(found, "a line ") ? 1 : 0;
    if (const std::vector<absl::string_view> words = absl::StrSplit(found, ' ');
        words[0] == "lost") {
      int count = 0;
      EXPECT_TRUE(absl::SimpleAtoi(words[1], &count));
      lost += count;
    }
  }
  EXPECT_GT(lost, 0);
  EXPECT_EQ(lines + lost, kLines);
  EXPECT_THAT(text, EndsWith("the last\n"));
}

TEST(LogThreadTest, AProcessGoesOnAndEndsWhereNobodyReadsItsLog) {
  Pipe pipe;
  Fill(pipe.ends[1]);
  const auto log_and_end = [](bool by_exit) {
    for (int i = 0; i < kLines; ++i) {
      LogInfo("line ", i, " ", std::string(100, 'x'));
    }
    FlushLog();
    by_exit ? std::exit(7) : _exit(7);
  };

  for (const bool by_exit : {true, false}) {
    const int status = StatusOfChild(pipe.ends[1], [&] { log_and_end(by_exit); });
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 7);
  }
}

TEST(LogThreadTest, TheLastLinesAreWrittenBeforeTheEnd) {
  for (const bool by_exit : {true, false}) {
    Pipe pipe;
    const int status = StatusOfChild(pipe.ends[1], [&] {
      LogError("the very last words");
      if (by_exit) {
        std::exit(7);  // Flushes itself.
      }
      FlushLog();
      _exit(7);
    });
    pipe.CloseWriting();
    EXPECT_EQ(WEXITSTATUS(status), 7);
    EXPECT_THAT(pipe.Read(), HasSubstr("E child the very last words\n"));
  }
}

TEST(LogThreadTest, AFailedCheckIsPrintedAndEndsTheProcess) {
  for (const bool full : {false, true}) {
    Pipe pipe;
    if (full) {
      Fill(pipe.ends[1]);
    }
    const int status = StatusOfChild(pipe.ends[1], [] { LAMINA_CHECK(1 == 2); });
    pipe.CloseWriting();
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), SIGABRT);
    if (!full) {
      EXPECT_THAT(pipe.Read(), HasSubstr("check failed: 1 == 2"));
    }
  }
}

}  // namespace
}  // namespace lamina
