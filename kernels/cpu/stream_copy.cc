// SPDX-License-Identifier: Apache-2.0
//
// Copies by stores past the caches, compiled once for each instruction set.
#include "kernels/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/stream_copy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Stores whole vectors one after the other, so that the parts of a line meet in the processor's
// buffer of it. What lies before the first aligned one and behind the last is stored as ever.
void CopyStreaming(uint8_t* to, const uint8_t* from, size_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  const size_t past = reinterpret_cast<uintptr_t>(to) % lanes;
  size_t done = std::min(bytes, past == 0 ? 0 : lanes - past);
  std::memcpy(to, from, done);
  for (; done + lanes <= bytes; done += lanes) {
    hn::Stream(hn::LoadU(d, from + done), d, to + done);
  }
  std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace HWY_NAMESPACE
}  // namespace lamina::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {

HWY_EXPORT(CopyStreaming);

void StreamCopy(void* to, const void* from, size_t bytes) {
  HWY_DYNAMIC_DISPATCH(CopyStreaming)
  (static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), bytes);
}

void EndStreamCopies() { hwy::FlushStream(); }

}  // namespace lamina::kernels
#endif  // HWY_ONCE
