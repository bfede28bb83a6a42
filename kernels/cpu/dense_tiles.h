// SPDX-License-Identifier: Apache-2.0
//
// Whether dense layers multiply bf16 in the tiles of AMX on this host, and if not, why
// (tile_choice.h).

#pragma once

#include "absl/status/status.h"

namespace lamina::kernels::cpu {

// CheckTiles() of the host that this runs on. Looks once, and takes some 20 ms then.
const absl::Status& TilesOfThisHost();

// While it lives, TilesOfThisHost() gives this answer: for tests of what dense layers do on other
// hosts. One at a time, while no other thread asks. Requires: not OK.
class AnswerOfOtherHost {
 public:
  explicit AnswerOfOtherHost(absl::Status answer);
  ~AnswerOfOtherHost();
  AnswerOfOtherHost(const AnswerOfOtherHost&) = delete;
  AnswerOfOtherHost& operator=(const AnswerOfOtherHost&) = delete;

 private:
  const absl::Status answer_;
};

}  // namespace lamina::kernels::cpu
