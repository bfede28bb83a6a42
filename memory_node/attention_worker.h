// SPDX-License-Identifier: Apache-2.0
//
// AttentionWorker: the data thread of a memory node in one epoch, and the parts it is made of.
//
//   StepFeed       takes plans: which step each lane is in, and which rows of it live here
//   SourceLoop     serves a list of sources (work_source.h), one bounded piece at a time
//   DeviceQueries  the source of steps that the device serves by itself
//   HostQueries    the source of all other queries
//   KvStream       the source of K and V for rows that attend at the compute node
//   SparseStream   a source of K and V of tokens that the compute node chooses
//   StreamingStream  a source of K and V where some heads stream
//   SpillSource    the source that moves K and V to the spill tier and back
//
// Threading: Run() on one thread; PushPlan() and Stop() from any other; the rest before Run().
// Allocation: none per unit; tables grow when sequences join.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/thread_pool.h"
#include "kernels/kv_device.h"
#include "memory_node/data_checks.h"
#include "memory_node/device_queries.h"
#include "memory_node/host_queries.h"
#include "memory_node/kv_stream.h"
#include "memory_node/node_epoch.h"
#include "memory_node/query_checks.h"
#include "memory_node/query_parts.h"
#include "memory_node/sparse_stream.h"
#include "memory_node/spill_source.h"
#include "memory_node/spill_tier.h"
#include "memory_node/step_feed.h"
#include "memory_node/streaming_stream.h"
#include "memory_node/unit_meter.h"
#include "memory_node/work_source.h"
#include "memory_node/worker_counters.h"
#include "plan/epoch_config.h"
#include "plan/step_plan.h"
#include "plan/tails.h"
#include "transport/transport.h"

namespace lamina::memory_node {

class AttentionWorker {
 public:
  struct Options {
    plan::EpochConfig config;
    uint32_t node = 0;                  // Own index among the memory nodes.
    bool checks_data = ChecksData();    // NodeEpoch's.
    Nanos peer_deadline = Seconds(60);  // Longest wait inside a started unit, and for its plan.
    // What plans spill goes there, and `report_spill` is told, by any thread. Outlives the worker;
    // null: none.
    SpillTier* spill = nullptr;
    SpillSource::Report report_spill = {};
    // With path remote_int8: the device that holds and attends the slots of that path. Outlives the
    // worker.
    kernels::KvDevice* int8_device = nullptr;
    // Those of the device with slots of INT8, which sequences may have had before the epoch. They
    // outlive the worker; null: nobody has had one.
    plan::Tails* tails = nullptr;
  };

  // All references must outlive the worker. With a `channel` (DeviceQueries::MakeChannel()) the
  // device serves the steps that fit by itself. Requires: with path fetch or sparse a device with
  // reads(); with a spill tier one with reads() and writes().
  AttentionWorker(const Options& options, transport::Transport& transport,
                  transport::Region& region, kernels::KvDevice& device, ThreadPool& pool,
                  WorkerCounters& counters,
                  std::unique_ptr<kernels::WindowChannel> channel = nullptr);
  ~AttentionWorker();
  AttentionWorker(const AttentionWorker&) = delete;
  AttentionWorker& operator=(const AttentionWorker&) = delete;

  // That the query windows lie in memory of the device, and outputs may, in `replies`, which has
  // room for so much and outlives the transport. Errors: the device's.
  size_t device_reply_bytes() const;
  absl::Status UseDeviceMemory(absl::Span<std::byte> replies);

  // Where what the node puts goes.
  void SetPeers(PeerRegions peers);

  // Serves another source besides the queries, and asks it first who takes a step. It outlives the
  // worker.
  void AddSource(WorkSource& source);
  StepFeed& feed() { return feed_; }
  const NodeEpoch& epoch() const { return epoch_; }

  // What a device of the node is asked for at most in this epoch, with `slots` in this form.
  static kernels::KvDeviceOptions DeviceOptions(const plan::EpochConfig& config, uint32_t node,
                                                KvForm form, uint32_t slots);

  // Bytes of all that sources of such an epoch register for puts when they open: the copies of each
  // that sends pieces, and replies. The arena is not among them. Requires: a path that fetches.
  static uint64_t SourceBytes(const plan::EpochConfig& config);

  // Pieces of bf16 are put from where K and V lie from then on, if there are any and the transport
  // takes all of the arena as a source; else the log warns. Where memory is pinned it takes a
  // while: call it before Run(), while no peer waits for answers.
  void RegisterArena();

  // Works until Stop() (OK) or until something is wrong: an error that names the peer it blames.
  absl::Status Run();

  void PushPlan(plan::StepPlan plan) { feed_.PushPlan(std::move(plan)); }
  void Stop();

 private:
  absl::Status AnswerLinks();
  absl::Status Serve();

  NodeEpoch epoch_;
  QueryChecks checks_;
  UnitMeter meter_;
  StepFeed feed_;
  QueryParts parts_;
  std::optional<DeviceQueries> device_queries_;  // None: the device cannot, or must not.
  HostQueries host_queries_;
  std::optional<KvStream> kv_stream_;                // With path fetch.
  std::optional<SparseStream> sparse_stream_;        // With path sparse.
  std::optional<StreamingStream> streaming_stream_;  // With path streaming.
  std::optional<SpillSource> spills_;                // With a spill tier.
  std::vector<WorkSource*> sources_;
};

}  // namespace lamina::memory_node
