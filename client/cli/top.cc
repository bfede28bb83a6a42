// SPDX-License-Identifier: Apache-2.0
//
// lamina top: the cluster, live.
#include <algorithm>
#include <deque>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/cli/command.h"
#include "client/cli/status_json.h"
#include "client/cli/top_screen.h"
#include "client/cli/top_view.h"
#include "common/clock.h"
#include "common/units.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] = R"(  lamina top
  lamina top --interval 250ms
  lamina top --frames 1                 one picture, as in a script
  lamina top --json --frames 10
busy: share of the last half second spent working. slots: KV cache used. mem: bandwidth that attention
used, of what was measured at start. first, next: times to the first token, and between tokens: the
mean between two pictures, and percentiles of the last minute (of all so far in the first picture).
On a terminal until q or Ctrl-C, cut to its window, with the tokens a second of the last pictures;
elsewhere one picture after another, without colour.
)";

constexpr Nanos kIntervalMin = Seconds(1) / 20;

constexpr Nanos kMinute = Seconds(60);

struct Look {
  Nanos time = 0;
  client::ClusterStatus status;
};

struct TopFlags {
  std::string interval = "1s";
  std::optional<uint32_t> frames;  // Absent: until Ctrl-C.
};

// Home, the text with the rest of each line cleared, and what was below cleared.
void Repaint(const std::string& text) {
  std::fputs("\033[H", stdout);
  for (size_t start = 0; start < text.size();) {
    const size_t end = text.find('\n', start);
    std::fwrite(text.data() + start, 1, end - start, stdout);
    std::fputs("\033[K\n", stdout);
    start = end + 1;
  }
  std::fputs("\033[J", stdout);
}

int Run(const Invocation& invocation, const TopFlags& flags) {
  const absl::StatusOr<Nanos> interval = ParseDuration(flags.interval);
  if (!interval.ok() || *interval < kIntervalMin) {
    return FailUsage(
        "top", absl::StrCat("--interval ", flags.interval, ": a time of at least 50ms, like 1s"));
  }
  const auto client = Connect(invocation);
  if (!client.ok()) {
    return Fail(client.status());
  }
  absl::Notification interrupted;
  const Interrupts::Scoped scoped(*invocation.interrupts, [&interrupted] {
    if (!interrupted.HasBeenNotified()) {
      interrupted.Notify();
    }
  });
  const bool live = Terminal::Output().interactive() && !invocation.json;
  if (live) {
    std::fputs("\033[2J", stdout);
  }
  std::optional<KeyWatch> keys;
  if (live) {
    keys.emplace();
  }
  RateHistory history;
  std::deque<Look> looks;  // Looks of the last minute, the latest last.
  for (uint32_t frame = 0; !flags.frames.has_value() || frame < *flags.frames; ++frame) {
    if (frame > 0 && live) {
      const auto ended = [&interrupted] { return interrupted.HasBeenNotified(); };
      if (keys->WaitForQuit(*interval, ended) || ended()) {
        break;
      }
    } else if (frame > 0 &&
               interrupted.WaitForNotificationWithTimeout(absl::Nanoseconds(*interval))) {
      break;
    }
    absl::StatusOr<client::ClusterStatus> now = (*client)->Status();
    if (!now.ok()) {
      return Fail(now.status());
    }
    const Nanos time = RealClock().Now();
    if (invocation.json) {
      PrintJson(ToJson(*now));
    } else {
      const Nanos passed = looks.empty() ? 0 : time - looks.back().time;
      const client::ClusterStatus* before = looks.empty() ? nullptr : &looks.back().status;
      const std::string view = TopView(*now, before, ToSeconds(passed), Terminal::Output(),
                                       looks.empty() ? nullptr : &looks.front().status);
      if (live) {
        const ScreenSize size = SizeOfScreen();
        if (before != nullptr && now->tokens_generated >= before->tokens_generated) {
          history.Add(static_cast<double>(now->tokens_generated - before->tokens_generated) /
                      ToSeconds(std::max<Nanos>(1, passed)));
        }
        Repaint(FitScreen(view, size, history.Line(size.columns)));
      } else {
        std::fputs(absl::StrCat(frame == 0 ? "" : "\n", view).c_str(), stdout);
      }
    }
    std::fflush(stdout);
    if (OutputFailed()) {
      return kExitFailed;
    }
    looks.push_back({time, *std::move(now)});
    while (time - looks.front().time > kMinute) {
      looks.pop_front();
    }
  }
  return interrupted.HasBeenNotified() && !live ? kExitInterrupted : kExitOk;
}

}  // namespace

void AddTopCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command = AddCommand(app, invocation, "top", "Watch the cluster live", kExamples);
  const auto flags = std::make_shared<TopFlags>();
  AddServerFlag(command, invocation);
  command->add_option("--interval", flags->interval, "Between pictures (default: 1s)")
      ->type_name("TIME");
  command->add_option("--frames", flags->frames, "End after so many pictures (default: go on)")
      ->transform(Whole(1, 1'000'000'000))
      ->type_name("N");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli
