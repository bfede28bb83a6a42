// SPDX-License-Identifier: Apache-2.0
//
// lamina cancel: ends requests of anybody by their ids.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/command.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] = R"(  lamina cancel req-5d0c1f6e2b9a47380e6fd1c2
  lamina cancel req-5d0c1f6e2b9a47380e6fd1c2 mine --json
An id is the `id` of the lines `admitted` in the coordinator's log and `answered` in the gateway's,
not the `request_id` there. Whoever asked for the text is told that the request was cancelled.
Exit status 1 when one of them is not running or waiting; the others are cancelled.
)";

int Run(const Invocation& invocation, const std::vector<std::string>& ids) {
  const auto client = Connect(invocation);
  if (!client.ok()) {
    return Fail(client.status());
  }
  int exit_status = kExitOk;
  for (const std::string& id : ids) {
    const absl::Status cancelled = (*client)->Cancel(id);
    if (invocation.json) {
      PrintJson({{"request_id", id}, {"cancelled", cancelled.ok()}});
    } else if (cancelled.ok()) {
      std::printf("cancelled %s\n", id.c_str());
    }
    if (!cancelled.ok()) {
      exit_status = Fail(cancelled);
    }
  }
  return exit_status;
}

}  // namespace

void AddCancelCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      AddCommand(app, invocation, "cancel", "End running or waiting requests", kExamples);
  const auto ids = std::make_shared<std::vector<std::string>>();
  AddServerFlag(command, invocation);
  command->add_option("ID", *ids, "The ids of requests")->required();
  command->callback([&invocation, ids] {
    invocation.run = [&invocation, ids] { return Run(invocation, *ids); };
  });
}

}  // namespace lamina::cli
