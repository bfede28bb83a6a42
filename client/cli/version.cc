// SPDX-License-Identifier: Apache-2.0
//
// lamina version.
#include "client/cli/command.h"

namespace lamina::cli {

void AddVersionCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command = AddCommand(app, invocation, "version", "The version of this program",
                                 "  lamina version --json\n");
  command->callback([&invocation] {
    invocation.run = [&invocation] {
      if (invocation.json) {
        PrintJson({{"version", invocation.version}});
      } else {
        std::printf("lamina %s\n", invocation.version.c_str());
      }
      return kExitOk;
    };
  });
}

}  // namespace lamina::cli
