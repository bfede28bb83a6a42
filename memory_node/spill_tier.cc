// SPDX-License-Identifier: Apache-2.0
#include "memory_node/spill_tier.h"

#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "telemetry/work_meter.h"

namespace lamina::memory_node {

absl::StatusOr<std::unique_ptr<SpillTier>> SpillTier::Open(const std::string& directory,
                                                           uint64_t bytes, std::vector<int> cores) {
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<SpillDisk> disk, OpenSpillDisk(directory));
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<SpillFile> file,
                          SpillFile::Create(std::move(disk), bytes, directory));
  LAMINA_ASSIGN_OR_RETURN(const SpillSpeed speed, file->Measure(SpillIo::kReads));
  return std::make_unique<SpillTier>(std::move(file), speed, std::move(cores));
}

telemetry::SpillCount SpillTier::Count() const {
  const auto read = [](const std::atomic<uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  const auto seconds = [&read](const std::atomic<uint64_t>& nanos) {
    return ToSeconds(static_cast<Nanos>(read(nanos)));
  };
  return {.capacity_bytes = file_->bytes(),
          .used_bytes = read(counters_.used_bytes),
          .bytes_out = read(counters_.bytes_out),
          .bytes_in = read(counters_.bytes_in),
          .sequences_out = read(counters_.sequences_out),
          .sequences_in = read(counters_.sequences_in),
          .cached_tokens_out = read(counters_.cached_tokens_out),
          .cached_tokens_in = read(counters_.cached_tokens_in),
          .failures = read(counters_.failures),
          .seconds_out = seconds(counters_.nanos_out),
          .seconds_in = seconds(counters_.nanos_in),
          .reads = {.queued_seconds = seconds(counters_.nanos_queued),
                    .reading_seconds = seconds(counters_.nanos_reading),
                    .behind_seconds = seconds(counters_.nanos_behind),
                    .copying_seconds = seconds(counters_.nanos_copying),
                    .ahead_bytes = read(counters_.bytes_ahead)},
          .write_bytes_per_second = speed_.write,
          .read_bytes_per_second = speed_.read};
}

void SpillTier::Failed(const absl::Status& why) {
  telemetry::AddTo(counters_.failures, 1);
  if (!warned_) {
    LogWarning(why.message(), ": sequences are recomputed");
    warned_ = true;
  }
}

}  // namespace lamina::memory_node
