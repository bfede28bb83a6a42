// SPDX-License-Identifier: Apache-2.0
//
// HostQueries: the source of queries that the data thread serves: it copies k and v of a window's
// rows into slots, attends, and puts the outputs into a reply window.
//
// It decides nothing: slots, rows and order come from plans. Rows of a unit come in pieces
// (plan/row_pieces.h), of rows or of heads; each is attended when it is here, and its outputs leave
// at once. Lanes take turns between pieces that have not come yet.
//
// A unit of several shards is served part by part (query_parts.h): the device stores and attends
// these heads by themselves, so that windows need no gathering.
//
// The header of a unit is checked against its signal and against the plan before anything is
// answered (query_checks.h); where rows lie, query_rows.h says.
//
// Threading: the data thread. Allocation: none per unit.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/thread_pool.h"
#include "memory_node/node_epoch.h"
#include "memory_node/query_checks.h"
#include "memory_node/query_parts.h"
#include "memory_node/query_rows.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_attention.h"
#include "memory_node/unit_meter.h"
#include "memory_node/work_source.h"

namespace lamina::memory_node {

class HostQueries final : public WorkSource {
 public:
  // References must outlive this.
  HostQueries(const NodeEpoch& epoch, const QueryChecks& checks, StepFeed& feed, UnitMeter& meter,
              QueryParts& parts, ThreadPool& pool);

  // Where rows lie; else in the host's memory. Call before Open().
  void SetRows(std::unique_ptr<QueryRows> rows);

  // Who still sends what rows of a lane's step are stored over; told before they are, layer by
  // layer, maybe more than once. Call before Open().
  using BeforeStore = std::function<absl::Status(const Lane& lane, uint32_t layer)>;
  void SetBeforeStore(BeforeStore before) { before_store_ = std::move(before); }

  // Registers what is put. Errors: the transport's, marked as its.
  absl::Status Open() override;
  void Close() override {}
  uint32_t share() const override { return 1; }
  // Takes every step.
  absl::StatusOr<bool> TakeStep(Lane& lane) override;
  // The next value of every (compute node, lane) that this source serves; the one served last is
  // looked at last. No shard is in the next step before all windows of this one have been answered:
  // they meet at its end.
  void AppendAwaited(std::vector<transport::SignalCondition>& conditions) override;
  Nanos LookAt(Nanos) const override { return kNever; }
  absl::Status Look() override { return absl::OkStatus(); }
  // Serves all pieces of a unit that are here. Errors: of a wrong window, or of what it leads to,
  // blamed on the sender.
  absl::Status Serve(size_t condition) override;

 private:
  // Whose unit is served.
  struct From {
    uint32_t sender;  // A compute node.
    Lane& lane;
    Part& part;
  };

  absl::Status ServeUnit(const From& from);
  // Whether the unit can be served now by this source.
  absl::StatusOr<bool> BeginUnit(const From& from, uint64_t value);
  void Shape(const From& from, uint32_t layer);
  absl::Status ServePiece(const From& from, uint64_t last);
  SubBatch ChunkOf(const From& from, uint32_t index, uint64_t value) const;
  absl::Status Settle(const From& from, uint64_t value);
  absl::Status Reply(const From& from, const SubBatch& chunk);
  absl::Status PutOutputs(const From& from, const SubBatch& chunk, plan::ByteRange outputs,
                          transport::RemoteRegion& to);
  absl::Status EndUnit(const From& from);
  // What attends the rows of the lane's step: the one whose device holds their form of K and V.
  UnitAttention& AttentionOf(const Lane& lane) {
    return int8_attention_.has_value() && lane.form == KvForm::kInt8 ? *int8_attention_
                                                                     : attention_;
  }

  const NodeEpoch& epoch_;
  const QueryChecks& checks_;
  StepFeed& feed_;
  UnitMeter& meter_;
  QueryParts& parts_;
  std::unique_ptr<QueryRows> rows_;
  BeforeStore before_store_;  // Null: there is nobody.
  UnitAttention attention_;
  std::optional<UnitAttention> int8_attention_;  // Rows of path remote_int8, if the epoch has it.
  std::vector<uint32_t> awaited_;                // Words of the conditions that were appended last.
  uint32_t first_word_ = 0;                      // Looked at first.
};

}  // namespace lamina::memory_node
