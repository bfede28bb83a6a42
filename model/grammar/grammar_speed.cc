// SPDX-License-Identifier: Apache-2.0
#include "model/grammar/grammar_speed.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/grammar/grammar_budget.h"

namespace lamina::model {
namespace {

absl::Status TooSlow(absl::string_view what, Nanos bound) {
  return absl::InvalidArgumentError(
      absl::StrCat("the form is too complex: ", what, " took more than ", bound / Millis(1),
                   " ms of processor time. Write rules that can be read in one way only,"
                   " 's ::= [a-z]+' instead of 's ::= s s | [a-z]'"));
}

}  // namespace

absl::Status CheckGrammarSpeed(GrammarWalk& walk) {
  constexpr int kBytes = 1024;
  constexpr int kBytesPerSearch = 64;
  constexpr Nanos kFollowedMax = Millis(500);  // Forms in use take some milliseconds.
  constexpr Nanos kSearchMax = GrammarBudget::kCallMax / 2;
  Nanos followed = 0;
  for (int i = 0; i < kBytes; ++i) {
    const Nanos began = ThreadTime();
    if (i % kBytesPerSearch == 0) {
      walk.FindTokens();
    }
    const Nanos found = ThreadTime();
    if (found - began > kSearchMax) {
      return TooSlow(absl::StrCat("to find the tokens that may follow ", i, " bytes of an output"),
                     kSearchMax);
    }
    if (!walk.GoOn()) {
      break;
    }
    followed += ThreadTime() - found;
    if (followed > kFollowedMax) {
      return TooSlow(absl::StrCat("to follow ", i + 1, " bytes of an output"), kFollowedMax);
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::model
