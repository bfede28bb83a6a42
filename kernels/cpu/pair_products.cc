// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/pair_products.h"

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lamina::kernels::cpu {

bool PairProductsAreSlow(std::istream& cpuinfo) {
  bool intel = false;
  for (std::string line; std::getline(cpuinfo, line) && !line.empty();) {  // The first core's.
    if (absl::StartsWith(line, "vendor_id")) {
      intel = absl::StrContains(line, "GenuineIntel");
    } else if (absl::StartsWith(line, "flags")) {
      return intel && absl::StrContains(absl::StrCat(line, " "), " avx512_fp16 ");
    }
  }
  return false;
}

bool PairProductsAreSlow() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  return PairProductsAreSlow(cpuinfo);
}

}  // namespace lamina::kernels::cpu
