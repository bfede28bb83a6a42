// SPDX-License-Identifier: Apache-2.0
#include "memory_node/query_checks.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"

namespace lamina::memory_node {

absl::Status QueryChecks::Refuse(telemetry::Refusal reason, absl::Status why) const {
  epoch_.counters.refusals.Count(reason);
  return why;
}

absl::Status QueryChecks::Header(const plan::WindowHeader& header,
                                 const plan::WindowHeader& expected) const {
  absl::Status checked = plan::CheckHeader(header, expected);
  if (checked.ok()) {
    return checked;
  }
  LogWarning("refused a query window of ", epoch_.NameOf(expected.sender), " ", checked.message());
  return Refuse(telemetry::RefusalOf(header, expected), checked);
}

absl::Status QueryChecks::SealedHeader(const plan::WindowHeader& header,
                                       const plan::WindowHeader& expected) const {
  if (absl::Status sealed = plan::CheckSeal(header, expected); !sealed.ok()) {
    LogWarning("refused a window of ", epoch_.NameOf(expected.sender), " ", sealed.message());
    return Refuse(telemetry::Refusal::kDamaged, std::move(sealed));
  }
  return Header(header, expected);
}

absl::Status QueryChecks::BySignal(const plan::WindowHeader& header, uint32_t sender,
                                   const Lane& lane, uint64_t value) const {
  return Header(header, {.lane = lane.index,
                         .epoch = epoch_.config.epoch,
                         .step = epoch_.layout.StepOf(value),
                         .layer = epoch_.layout.LayerOf(value),
                         .rows = header.rows,
                         .kv_rows = header.kv_rows,
                         .sender = sender});
}

plan::WindowHeader QueryChecks::Planned(uint32_t sender, const Lane& lane, uint32_t layer) const {
  return {.lane = lane.index,
          .epoch = epoch_.config.epoch,
          .step = lane.step,
          .layer = layer,
          .rows = static_cast<uint32_t>(lane.rows.size()),
          .kv_rows = lane.chunk_tokens,
          .sender = sender};
}

absl::Status QueryChecks::ByPlan(const plan::WindowHeader& header, uint32_t sender,
                                 const Lane& lane, uint32_t layer) const {
  return Header(header, Planned(sender, lane, layer));
}

absl::Status QueryChecks::Turn(uint32_t sender, uint32_t shard, const Lane& lane,
                               uint32_t layer) const {
  const uint32_t turn = epoch_.RunnerOf(shard, lane, layer);
  return turn == sender
             ? absl::OkStatus()
             : Refuse(telemetry::Refusal::kSchedule,
                      absl::InternalError(absl::StrCat(
                          "a window of lane ", lane.index, " step ", lane.step, " layer ", layer,
                          " comes from compute node ", sender, " where the schedule says ", turn)));
}

absl::Status QueryChecks::NoPart(uint32_t sender, const Lane& lane) const {
  return Refuse(
      telemetry::Refusal::kSchedule,
      absl::InternalError(absl::StrCat("a window of lane ", lane.index, " comes from compute node ",
                                       sender, ", which has no part in it, or no heads here")));
}

absl::Status QueryChecks::LeftUnit(uint32_t sender, const Lane& lane, uint64_t value) const {
  return Refuse(telemetry::Refusal::kSchedule,
                absl::InternalError(absl::StrCat(
                    "compute node ", sender, " went on to step ", epoch_.layout.StepOf(value),
                    " layer ", epoch_.layout.LayerOf(value), " of lane ", lane.index,
                    " without the end of the unit before")));
}

absl::Status QueryChecks::Unplanned(uint32_t sender, const Lane& lane, uint64_t value) const {
  return Refuse(telemetry::Refusal::kUnplanned,
                absl::DeadlineExceededError(absl::StrCat(
                    "a window of lane ", lane.index, " step ", epoch_.layout.StepOf(value),
                    " layer ", epoch_.layout.LayerOf(value), " came from ", epoch_.NameOf(sender),
                    ", and no plan of the step within ", ToSeconds(epoch_.peer_deadline), " s")));
}

absl::Status QueryChecks::Overwritten(uint32_t sender, const Lane& lane, uint32_t layer,
                                      bool stale) const {
  return Refuse(
      stale ? telemetry::Refusal::kStale : telemetry::Refusal::kDamaged,
      absl::InternalError(absl::StrCat(
          "window header of compute node ", sender, ", lane ", lane.index, " step ", lane.step,
          " layer ", layer, ": the device saw ", stale ? "one of the past" : "one of another unit",
          ", and it was overwritten since")));
}

}  // namespace lamina::memory_node
