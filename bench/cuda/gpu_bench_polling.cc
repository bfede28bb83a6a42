// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <new>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/cuda/gpu_bench.h"
#include "common/status_macros.h"
#include "kernels/cuda/wait.h"

namespace lamina::bench {
namespace {

using kernels::cuda::ArenaKind;
using kernels::cuda::MemoryArena;
using kernels::cuda::RaiseSignal;
using kernels::cuda::WaitForWindow;
using kernels::cuda::WaitOutcome;
using kernels::cuda::WaitRecord;

constexpr uint64_t kRounds = 2000;
constexpr uint64_t kTimeoutNanos = 5'000'000'000;

struct Words {
  alignas(64) uint64_t to_device;
  alignas(64) uint64_t to_host;
  alignas(64) uint32_t abort;
  alignas(64) WaitRecord record;
};

uint64_t Load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
void Store(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

double MicrosSince(std::chrono::steady_clock::time_point started) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - started)
      .count();
}

// The host raises a signal and waits for the device's answer, round after round, in its own thread;
// the device's waits and answers were launched before. Microseconds of a round.
absl::StatusOr<double> DevicePolls(const GpuBench& bench, Words& words) {
  double micros = 0;
  std::thread host([&] {
    const auto started = std::chrono::steady_clock::now();
    for (uint64_t round = 1; round <= kRounds; ++round) {
      Store(&words.to_device, round);
      while (Load(&words.to_host) < round &&
             __atomic_load_n(&words.record.failed, __ATOMIC_ACQUIRE) == 0) {
      }
    }
    micros = MicrosSince(started) / kRounds;
  });
  absl::Status status;
  for (uint64_t round = 1; round <= kRounds && status.ok(); ++round) {
    status = WaitForWindow({.signal = &words.to_device,
                            .at_least = round,
                            .timeout_nanos = kTimeoutNanos,
                            .abort = &words.abort,
                            .record = &words.record,
                            .sequence = round},
                           bench.stream);
    if (status.ok()) {
      status = RaiseSignal({.signal = &words.to_host, .value = round, .record = &words.record},
                           bench.stream);
    }
  }
  if (!status.ok()) {
    // Ends the waits that were launched, and the host's thread.
    __atomic_store_n(&words.abort, 1u, __ATOMIC_RELEASE);
    __atomic_store_n(&words.record.failed, static_cast<uint32_t>(WaitOutcome::kAborted),
                     __ATOMIC_RELEASE);
  }
  const absl::Status synchronized = bench.stream.Synchronize();
  host.join();
  LAMINA_RETURN_IF_ERROR(status);
  LAMINA_RETURN_IF_ERROR(synchronized);
  if (words.record.outcome != static_cast<uint32_t>(WaitOutcome::kOk)) {
    return absl::InternalError(absl::StrCat("a wait ended with outcome ", words.record.outcome));
  }
  return micros;
}

// The host waits for the signal and launches the answer only then, as without polling on the
// device.
absl::StatusOr<double> HostPolls(const GpuBench& bench, Words& words) {
  const auto started = std::chrono::steady_clock::now();
  for (uint64_t round = 1; round <= kRounds; ++round) {
    LAMINA_RETURN_IF_ERROR(
        RaiseSignal({.signal = &words.to_host, .value = kRounds + round}, bench.stream));
    while (Load(&words.to_host) < kRounds + round) {
      if (MicrosSince(started) > 30e6) {
        return absl::DeadlineExceededError("the device did not answer");
      }
    }
  }
  return MicrosSince(started) / kRounds;
}

}  // namespace

absl::StatusOr<std::string> BenchPolling(const GpuBench& bench) {
  LAMINA_ASSIGN_OR_RETURN(MemoryArena arena,
                          MemoryArena::Create(ArenaKind::kPinnedHost, sizeof(Words)));
  LAMINA_ASSIGN_OR_RETURN(Words* const place, arena.Take<Words>(1));
  Words* const words = new (place) Words{};
  LAMINA_ASSIGN_OR_RETURN(const double device, DevicePolls(bench, *words));
  LAMINA_ASSIGN_OR_RETURN(const double host, HostPolls(bench, *words));
  LAMINA_ASSIGN_OR_RETURN(const std::string units, BenchExchange(bench));
  return absl::StrFormat(
      "{\"rounds\": %d, \"device_polls_us\": %.2f, \"host_polls_us\": %.2f, \"units\": %s}",
      kRounds, device, host, units);
}

}  // namespace lamina::bench
