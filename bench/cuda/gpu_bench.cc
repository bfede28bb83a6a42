// SPDX-License-Identifier: Apache-2.0
//
// lamina-gpu-bench STEP: facts, attention, linear, slice, store or polling; one JSON object on
// stdout. Exit status: 0 measured, 1 failed, 2 wrong usage, 77 no device.

#include "bench/cuda/gpu_bench.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace lamina::bench {

using kernels::cuda::Event;

absl::StatusOr<double> Milliseconds(const GpuBench& bench, int repeats,
                                    const std::function<absl::Status()>& work) {
  LAMINA_ASSIGN_OR_RETURN(const Event started, Event::Create());
  LAMINA_ASSIGN_OR_RETURN(const Event ended, Event::Create());
  LAMINA_RETURN_IF_ERROR(work());
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    LAMINA_RETURN_IF_ERROR(started.Record(bench.stream));
    for (int i = 0; i < repeats; ++i) {
      LAMINA_RETURN_IF_ERROR(work());
    }
    LAMINA_RETURN_IF_ERROR(ended.Record(bench.stream));
    LAMINA_RETURN_IF_ERROR(ended.Synchronize());
    LAMINA_ASSIGN_OR_RETURN(const float total, ended.MillisecondsSince(started));
    const double mean = static_cast<double>(total) / repeats;
    best = pass == 0 ? mean : std::min(best, mean);
  }
  return best;
}

absl::Status FillRandom(const GpuBench& bench, BFloat16* to, size_t count) {
  constexpr size_t kPattern = size_t{1} << 22;
  using kernels::cuda::ArenaKind;
  using kernels::cuda::MemoryArena;
  LAMINA_ASSIGN_OR_RETURN(MemoryArena arena,
                          MemoryArena::Create(ArenaKind::kPinnedHost, kPattern * sizeof(BFloat16)));
  LAMINA_ASSIGN_OR_RETURN(BFloat16* const pattern, arena.Take<BFloat16>(kPattern));
  std::minstd_rand random(1);
  for (size_t i = 0; i < kPattern; ++i) {
    pattern[i] = ToBFloat16(static_cast<float>(random()) * 0x1p-30f - 1.0f);
  }
  for (size_t first = 0; first < count; first += kPattern) {
    const size_t some = std::min(kPattern, count - first);
    LAMINA_RETURN_IF_ERROR(CopyAsync(to + first, pattern, some * sizeof(BFloat16), bench.stream));
  }
  return bench.stream.Synchronize();  // The pattern goes.
}

absl::StatusOr<double> CopyBandwidth(const GpuBench& bench) {
  constexpr uint64_t kBytes = uint64_t{2} << 30;
  using kernels::cuda::ArenaKind;
  using kernels::cuda::MemoryArena;
  LAMINA_ASSIGN_OR_RETURN(MemoryArena arena, MemoryArena::Create(ArenaKind::kDevice, 2 * kBytes));
  LAMINA_ASSIGN_OR_RETURN(std::byte* const from, arena.Take<std::byte>(kBytes));
  LAMINA_ASSIGN_OR_RETURN(std::byte* const to, arena.Take<std::byte>(kBytes));
  LAMINA_RETURN_IF_ERROR(kernels::cuda::FillAsync(from, 1, kBytes, bench.stream));
  LAMINA_ASSIGN_OR_RETURN(const double milliseconds, Milliseconds(bench, 10, [&] {
                            return CopyAsync(to, from, kBytes, bench.stream);
                          }));
  return 2 * static_cast<double>(kBytes) / milliseconds / 1e6;
}

namespace {

absl::StatusOr<std::string> Facts(const GpuBench& bench) {
  const kernels::cuda::DeviceInfo& d = bench.device;
  LAMINA_ASSIGN_OR_RETURN(const double copy, CopyBandwidth(bench));
  return absl::StrFormat(
      "{\"name\": \"%s\", \"compute_capability\": \"%d.%d\", \"multiprocessors\": %d, "
      "\"memory_bytes\": %d, \"shared_bytes_max\": %d, \"copy_gb_per_s\": %.1f}",
      d.name, d.capability_major, d.capability_minor, d.multiprocessors, d.memory_bytes,
      d.shared_bytes_max, copy);
}

absl::StatusOr<std::string> Run(absl::StatusOr<std::string> (*step)(const GpuBench&),
                                const kernels::cuda::DeviceInfo& device) {
  LAMINA_ASSIGN_OR_RETURN(const kernels::cuda::Stream stream, kernels::cuda::Stream::Create());
  return step({.device = device, .stream = stream});
}

int Main(int argc, char** argv) {
  const std::map<std::string, absl::StatusOr<std::string> (*)(const GpuBench&)> steps = {
      {"facts", Facts},      {"attention", BenchAttention}, {"linear", BenchLinear},
      {"slice", BenchSlice}, {"store", BenchStore},         {"polling", BenchPolling}};
  const auto step = argc == 2 ? steps.find(argv[1]) : steps.end();
  if (step == steps.end()) {
    std::fprintf(stderr, "usage: lamina-gpu-bench facts|attention|linear|slice|store|polling\n");
    return 2;
  }
  const auto device = kernels::cuda::OpenDevice(0);
  if (!device.ok()) {
    std::fprintf(stderr, "no CUDA device that can be used: %s\n",
                 device.status().ToString().c_str());
    return absl::IsUnavailable(device.status()) ? 77 : 1;
  }
  const absl::StatusOr<std::string> result = Run(step->second, *device);
  if (!result.ok()) {
    std::fprintf(stderr, "%s: %s\n", argv[1], result.status().ToString().c_str());
    return 1;
  }
  std::printf("%s\n", result->c_str());
  return 0;
}

}  // namespace
}  // namespace lamina::bench

int main(int argc, char** argv) { return lamina::bench::Main(argc, argv); }
