// SPDX-License-Identifier: Apache-2.0
#include "policy/token_recompute.h"

#include "absl/strings/str_format.h"

namespace lamina::policy {

std::string DescribeTokens(const TokenProfile& profile, double share) {
  constexpr double kMicro = 1e6;
  const std::string weights =
      profile.weights > 0
          ? absl::StrFormat("the layer's weights %.3g us there, ", profile.weights * kMicro)
          : "";
  const std::string times = absl::StrFormat(
      "K and V of one take %.3g us on the link, %smaking them %.3g us, and all else of a layer on "
      "the device %.3g us",
      profile.kv * kMicro, weights, profile.make * kMicro, profile.other * kMicro);
  return share > 0
             ? absl::StrFormat("%.0f%% of tokens made from their numbers: %s", share * 100, times)
             : absl::StrFormat("no tokens made from their numbers: %s", times);
}

}  // namespace lamina::policy
