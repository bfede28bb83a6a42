// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/loss_history.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lamina::core {

absl::Status LossHistory::Why() const {
  return absl::UnavailableError(absl::StrCat(
      "the request was running in ", losses_.size(),
      " losses of nodes with no new token between them (", absl::StrJoin(losses_, ", then "),
      "), so it is not tried once more; send it again when the nodes stay up"));
}

}  // namespace lamina::core
