// SPDX-License-Identifier: Apache-2.0
//
// What is printed when a command line is wrong, or asks for help.

#pragma once

#include <memory>

#include "CLI/CLI.hpp"

namespace lamina::cli {

// The one style of --help: a flag, the name of its value, and in its words what it is by default.
std::shared_ptr<CLI::Formatter> MakeHelpFormatter();

// Prints help or the version on stdout and returns 0, or the mistake on stderr, with the nearest
// known command or flag, and returns 2.
int ExplainUsage(const CLI::App& app, const CLI::ParseError& error);

}  // namespace lamina::cli
