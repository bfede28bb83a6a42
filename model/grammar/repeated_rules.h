// SPDX-License-Identifier: Apache-2.0
//
// Whether XGrammar can take the repetitions of a grammar apart. Where a rule is repeated that is
// nothing but a repetition of another rule, it goes on with that one by recursion: without an end
// where they lead back.
//
// Threading: pure.

#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lamina::model {

// `rules`: as xgrammar::Grammar::ToString() prints them, one a line.
// Errors: kInvalidArgument  names a rule that leads to more than 256 repetitions; how to write it.
// Cost: some passes over the text.
absl::Status CheckRepeatedRules(absl::string_view rules);

}  // namespace lamina::model
