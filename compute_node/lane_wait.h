// SPDX-License-Identifier: Apache-2.0
//
// LaneWait: the sleep of a data thread none of whose lanes is ready: until something comes that a
// lane waits for, until a path wants to be polled, or until somebody is given up. While some lanes
// always have work the thread never sleeps: it looks from time to time whether others wait in vain.
//
// Threading: the data thread. Allocation: none once vectors have grown.

#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "compute_node/lane.h"
#include "compute_node/path_set.h"
#include "compute_node/quiet_clock.h"
#include "compute_node/replica_exchange.h"
#include "compute_node/shard_exchange.h"
#include "compute_node/signal_wait.h"
#include "compute_node/worker_context.h"
#include "transport/transport.h"

namespace lamina::compute_node {

class LaneWait {
 public:
  // References must outlive this.
  LaneWait(const WorkerContext& context, const PathSet& paths, const ReplicaExchange& replicas,
           const ShardExchange& shards)
      : context_(context),
        paths_(paths),
        replicas_(replicas),
        shards_(shards),
        signals_(context),
        quiet_(context.config.lanes) {}

  // Errors: as SignalWait::Wait().
  absl::Status Run(absl::Span<const Lane> lanes, const transport::AbortWord& abort);

  // A slice of another lane is about to run. It does not wait.
  // Errors: as Peers::NothingFrom(), once two looks in a row have found nothing; as
  // SignalWait::CheckPeers().
  absl::Status WhileOthersRun(absl::Span<const Lane> lanes, Nanos now);

 private:
  // What all lanes wait for, and how long.
  void ExpectSignals(absl::Span<const Lane> lanes);
  // How long it waits for outputs of attention, for sums of shards, and for other compute nodes'
  // visits.
  void ExpectSignalsOf(const Lane& lane, Nanos for_outputs, Nanos for_sums, Nanos for_nodes);

  const WorkerContext& context_;
  const PathSet& paths_;
  const ReplicaExchange& replicas_;
  const ShardExchange& shards_;
  SignalWait signals_;
  QuietClock quiet_;
  Nanos look_at_ = 0;        // WhileOthersRun() looks next.
  bool found_late_ = false;  // Its last look has found somebody late.
};

}  // namespace lamina::compute_node
