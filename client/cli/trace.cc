// SPDX-License-Identifier: Apache-2.0
//
// lamina trace: a timeline of all nodes, for Perfetto.
#include "client/cli/trace.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/timeline.h"
#include "client/cli/timeline_clocks.h"
#include "client/tracing.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] = R"(  lamina trace
  lamina trace --seconds 0.5 --output step.json
Open the file at ui.perfetto.dev, or in chrome://tracing. Rows: requests and steps at the
coordinator, lanes, and of each node its worker and its links; arrows follow one lane's data.
Ctrl-C ends the recording early.
)";

constexpr double kSecondsMax = 60;

struct TraceFlags {
  double seconds = 1;
  std::string output = "lamina-trace.json";
};

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int error = errno;
  if (file != nullptr && std::fclose(file) != 0 && written) {
    error = errno;
    written = false;
  }
  if (!written) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write '", path, "': ", std::strerror(error), "; see --output"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> Record(const Invocation& invocation, const TraceFlags& flags,
                            const client::Cancellation& cancellation) {
  // Says it well when there is no server.
  LAMINA_RETURN_IF_ERROR(Connect(invocation).status());
  LAMINA_ASSIGN_OR_RETURN(
      client::Timeline timeline,
      client::RecordTimeline({.server = invocation.server, .tls = {.ca = invocation.tls_ca}},
                             static_cast<Nanos>(flags.seconds * 1e9), cancellation));
  const size_t others = KeepLastEpoch(timeline);
  const std::vector<NodeClock> clocks = PutOnOneClock(timeline);
  const std::string text = ToTraceEvents(timeline);
  LAMINA_RETURN_IF_ERROR(WriteFile(flags.output, text));
  Json nodes = Json::array();
  for (size_t i = 0; i < timeline.nodes.size(); ++i) {
    const client::NodeTimeline& node = timeline.nodes[i];
    nodes.push_back({{"name", node.name},
                     {"events", node.events.size()},
                     {"dropped", node.dropped},
                     {"clock_offset_us", static_cast<double>(clocks[i].measured) * 1e-3},
                     {"clock_error_us", static_cast<double>(clocks[i].error) * 1e-3},
                     {"clock_shift_us", static_cast<double>(clocks[i].shift) * 1e-3}});
  }
  return Json{{"file", flags.output},
              {"bytes", text.size()},
              {"seconds", ToSeconds(timeline.ended - timeline.began)},
              {"steps", timeline.steps.size()},
              {"steps_left_out", others},
              {"requests", timeline.requests.size()},
              {"nodes", nodes}};
}

void Print(const Json& report) {
  std::printf("%s, %s: %.2f s, %d steps, %d requests\n", report["file"].get<std::string>().c_str(),
              FormatBytes(report["bytes"].get<uint64_t>()).c_str(), report["seconds"].get<double>(),
              report["steps"].get<int>(), report["requests"].get<int>());
  if (const auto others = report["steps_left_out"].get<unsigned long long>(); others > 0) {
    std::printf("%llu steps of earlier epochs were left out: the members have changed meanwhile\n",
                others);
  }
  for (const Json& node : report["nodes"]) {
    std::printf("%-12s %8llu events, %llu older ones dropped; its clock is off by %.1f us\n",
                node["name"].get<std::string>().c_str(), node["events"].get<unsigned long long>(),
                node["dropped"].get<unsigned long long>(), node["clock_shift_us"].get<double>());
  }
  std::printf("open it at ui.perfetto.dev\n");
}

int Run(const Invocation& invocation, const TraceFlags& flags) {
  const client::Cancellation cancellation;
  const Interrupts::Scoped scoped(*invocation.interrupts,
                                  [cancellation] { cancellation.Cancel(); });
  const absl::StatusOr<Json> report = Record(invocation, flags, cancellation);
  if (!report.ok()) {
    return Fail(report.status());
  }
  if (invocation.json) {
    PrintJson(*report);
  } else {
    Print(*report);
  }
  return kExitOk;
}

}  // namespace

void AddTraceCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command = AddCommand(app, invocation, "trace",
                                 "Record a timeline of all nodes, for Perfetto", kExamples);
  const auto flags = std::make_shared<TraceFlags>();
  AddServerFlag(command, invocation);
  command->add_option("--seconds", flags->seconds, "How long (default: 1)")
      ->check(Within(1e-3, kSecondsMax))
      ->type_name("S");
  command->add_option("--output", flags->output, "The file (default: lamina-trace.json)")
      ->type_name("FILE");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli
