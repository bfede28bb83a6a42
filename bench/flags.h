// SPDX-License-Identifier: Apache-2.0
//
// The command line of a benchmark, with the exit status that every program has.

#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "common/version.h"

namespace lamina::bench {

// Returns the exit status if the program is to end here: 0 after --help or --version, which are
// printed on stdout, and 2 after wrong usage, which is explained on stderr.
inline std::optional<int> ParseFlags(CLI::App& app, int argc, char** argv) {
  app.set_version_flag("--version", std::string(kVersion));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

}  // namespace lamina::bench
