// SPDX-License-Identifier: Apache-2.0
#include "compute_node/path_set.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace lamina::compute_node {

PathSet::PathSet(const WorkerContext& context, absl::Span<PathMaker* const> makers) {
  LAMINA_CHECK(!makers.empty());
  for (PathMaker* const maker : makers) {
    kinds_.push_back(maker->kind());
    paths_.push_back(maker->Make(context));
  }
}

uint32_t PathSet::IndexOf(plan::AttentionPath kind) const {
  return static_cast<uint32_t>(std::find(kinds_.begin(), kinds_.end(), kind) - kinds_.begin());
}

template <typename Call>
absl::Status PathSet::ForEachOf(const Lane& lane, Call call) const {
  for (size_t i = 0; i < paths_.size(); ++i) {
    if (!lane.paths[i].empty()) {
      LAMINA_RETURN_IF_ERROR(call(*paths_[i], lane.paths[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status PathSet::Prepare() {
  for (const auto& path : paths_) {
    LAMINA_RETURN_IF_ERROR(path->Prepare());
  }
  return absl::OkStatus();
}

void PathSet::PrepareLane(Lane& lane) {
  for (const auto& path : paths_) {
    path->PrepareLane(lane);
  }
}

std::string PathSet::Describe() const {
  std::string words;
  for (const auto& path : paths_) {
    absl::StrAppend(&words, path->Describe());
  }
  return words;
}

uint64_t PathSet::buffer_bytes() const {
  uint64_t bytes = 0;
  for (const auto& path : paths_) {
    bytes += path->buffer_bytes();
  }
  return bytes;
}

absl::Status PathSet::Open() {
  for (const auto& path : paths_) {
    LAMINA_RETURN_IF_ERROR(path->Open());
  }
  return absl::OkStatus();
}

void PathSet::Close() {
  for (const auto& path : paths_) {
    path->Close();
  }
}

void PathSet::Abort() {
  for (const auto& path : paths_) {
    path->Abort();
  }
}

absl::Status PathSet::Apply(const plan::StepPlan& plan) {
  for (const auto& path : paths_) {
    LAMINA_RETURN_IF_ERROR(path->Apply(plan));
  }
  return absl::OkStatus();
}

absl::Status PathSet::BeginStep(Lane& lane) {
  return ForEachOf(lane, [&lane](AttentionPath& path, const PathRows& rows) {
    return path.BeginStep(lane, rows);
  });
}

absl::Status PathSet::WhileWeightsCome(Lane& lane) {
  return ForEachOf(
      lane, [&lane](AttentionPath& path, const PathRows&) { return path.WhileWeightsCome(lane); });
}

absl::StatusOr<bool> PathSet::BeforeSlice(Lane& lane) {
  bool may_run = true;
  LAMINA_RETURN_IF_ERROR(ForEachOf(lane, [&](AttentionPath& path, const PathRows&) -> absl::Status {
    LAMINA_ASSIGN_OR_RETURN(const bool may, path.BeforeSlice(lane));
    may_run = may_run && may;
    return absl::OkStatus();
  }));
  return may_run;
}

absl::Status PathSet::Attend(Lane& lane) {
  return ForEachOf(lane,
                   [&lane](AttentionPath& path, const PathRows&) { return path.Attend(lane); });
}

bool PathSet::Await(Lane& lane) {
  bool any = false;
  (void)ForEachOf(lane, [&](AttentionPath& path, const PathRows&) {
    any = path.Await(lane) || any;
    return absl::OkStatus();
  });
  return any;
}

absl::StatusOr<bool> PathSet::Poll(Lane& lane) {
  bool all = true;
  LAMINA_RETURN_IF_ERROR(ForEachOf(lane, [&](AttentionPath& path, const PathRows&) -> absl::Status {
    LAMINA_ASSIGN_OR_RETURN(const bool taken, path.Poll(lane));
    all = all && taken;
    return absl::OkStatus();
  }));
  return all;
}

void PathSet::AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const {
  (void)ForEachOf(lane, [&](AttentionPath& path, const PathRows&) {
    path.AppendAwaited(lane, awaited);
    return absl::OkStatus();
  });
}

std::optional<Nanos> PathSet::PollPause(const Lane& lane) const {
  std::optional<Nanos> shortest;
  (void)ForEachOf(lane, [&](AttentionPath& path, const PathRows&) {
    if (const auto pause = path.PollPause(lane)) {
      shortest = std::min(*pause, shortest.value_or(*pause));
    }
    return absl::OkStatus();
  });
  return shortest;
}

bool PathSet::TimesSlices(const Lane& lane) const {
  bool any = false;
  (void)ForEachOf(lane, [&](AttentionPath& path, const PathRows&) {
    any = any || path.TimesSlices(lane);
    return absl::OkStatus();
  });
  return any;
}

uint32_t PathSet::RowsFromElsewhere(const Lane& lane) const {
  uint32_t most = 0;
  (void)ForEachOf(lane, [&](AttentionPath& path, const PathRows& rows) {
    most = rows.decode.count == 0 ? most : std::max(most, path.RowsFromElsewhere(rows));
    return absl::OkStatus();
  });
  return most;
}

void PathSet::EndStep(Lane& lane) {
  (void)ForEachOf(lane, [&lane](AttentionPath& path, const PathRows&) {
    path.EndStep(lane);
    return absl::OkStatus();
  });
}

}  // namespace lamina::compute_node
