// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as the header of a window: it is taken only if it is the one that the plan expects, and
// what is refused as old is old.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/check.h"
#include "plan/window_header.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using lamina::plan::WindowHeader;

WindowHeader Expected() {
  return {.lane = 1, .epoch = 3, .step = 7, .layer = 2, .rows = 4, .kv_rows = 5, .sender = 1};
}

}  // namespace

std::vector<std::string> GeneratedSeeds() {
  std::vector<std::string> seeds;
  for (int field = 0; field < 4; ++field) {
    WindowHeader header = Expected();
    header.step -= field == 1 ? 1 : 0;
    header.epoch -= field == 2 ? 1 : 0;
    header.rows += field == 3 ? 1 : 0;
    seeds.emplace_back(reinterpret_cast<const char*>(&header), sizeof header);
  }
  return seeds;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  WindowHeader header;
  std::memcpy(&header, data, std::min(size, sizeof header));
  const WindowHeader expected = Expected();
  const absl::Status status = lamina::plan::CheckHeader(header, expected);
  const bool same = header.magic == expected.magic && header.lane == expected.lane &&
                    header.epoch == expected.epoch && header.step == expected.step &&
                    header.layer == expected.layer && header.rows == expected.rows &&
                    header.kv_rows == expected.kv_rows && header.sender == expected.sender &&
                    header.reduction == expected.reduction;
  LAMINA_CHECK(!status.ok() || same);
  if (absl::IsAborted(status)) {
    LAMINA_CHECK(header.epoch < expected.epoch ||
                 (header.epoch == expected.epoch && header.lane == expected.lane &&
                  std::pair(header.step, header.layer) < std::pair(expected.step, expected.layer)));
  }
  return 0;
}
