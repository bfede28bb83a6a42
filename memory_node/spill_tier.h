// SPDX-License-Identifier: Apache-2.0
//
// SpillTier: the spill file of a memory node with its threads, over all epochs: what a SpillSource
// moves K and V to and from.
//
// Threading: counters are read by any thread; the rest is the data thread's, epoch by epoch.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "control/node_handler.h"
#include "memory_node/spill_disk.h"
#include "memory_node/spill_file.h"
#include "memory_node/spill_io.h"
#include "telemetry/node_counters.h"

namespace lamina::memory_node {

class SpillTier {
 public:
  // A file of so many bytes in the folder `directory`, whose speed is measured. `cores`: as SpillIo
  // has it, for those on which nobody attends.
  // Errors: those of OpenSpillDisk(), SpillFile::Create() and Measure().
  static absl::StatusOr<std::unique_ptr<SpillTier>> Open(const std::string& directory,
                                                         uint64_t bytes, std::vector<int> cores);
  SpillTier(std::unique_ptr<SpillFile> file, const SpillSpeed& speed, std::vector<int> cores = {})
      : file_(std::move(file)), speed_(speed), io_(*file_, std::move(cores)) {}

  SpillFile& file() { return *file_; }
  SpillIo& io() { return io_; }
  const SpillSpeed& speed() const { return speed_; }
  // What the node tells the coordinator of the tier.
  control::SpillTier Identity() const {
    return {.capacity_bytes = file_->bytes(),
            .write_bytes_per_second = speed_.write,
            .read_bytes_per_second = speed_.read};
  }
  telemetry::SpillCount Count() const;

  // Written by the data thread.
  struct Counters {
    std::atomic<uint64_t> used_bytes{0};
    std::atomic<uint64_t> bytes_out{0};
    std::atomic<uint64_t> bytes_in{0};
    std::atomic<uint64_t> sequences_out{0};
    std::atomic<uint64_t> sequences_in{0};
    std::atomic<uint64_t> cached_tokens_out{0};
    std::atomic<uint64_t> cached_tokens_in{0};
    std::atomic<uint64_t> failures{0};
    std::atomic<uint64_t> nanos_out{0};
    std::atomic<uint64_t> nanos_in{0};
    // Parts of nanos_in, which telemetry::SpillReads explains.
    std::atomic<uint64_t> nanos_queued{0};
    std::atomic<uint64_t> nanos_reading{0};
    std::atomic<uint64_t> nanos_behind{0};
    std::atomic<uint64_t> nanos_copying{0};
    std::atomic<uint64_t> bytes_ahead{0};
  };
  Counters& counters() { return counters_; }
  // Counts it, and warns of the first one since something went well.
  void Failed(const absl::Status& why);
  void WentWell() { warned_ = false; }

 private:
  std::unique_ptr<SpillFile> file_;
  const SpillSpeed speed_;
  SpillIo io_;
  Counters counters_;
  bool warned_ = false;
};

}  // namespace lamina::memory_node
