// SPDX-License-Identifier: Apache-2.0
#include "memory_node/attention_worker.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "control/blame.h"
#include "control/transport_fault.h"
#include "memory_node/step_rows.h"
#include "plan/epoch_shape.h"
#include "transport/link_probe.h"

namespace lamina::memory_node {
namespace {

// How long an idle worker sleeps before it looks for plans of steps without rows here.
constexpr Nanos kIdleWait = Millis(50);
// For all compute nodes to have measured their links, one after the other. Longer than each waits
// for an answer, so that it is they who say which link does not work.
constexpr Nanos kMeasuringMax = Seconds(60);

}  // namespace

AttentionWorker::AttentionWorker(const Options& options, transport::Transport& transport,
                                 transport::Region& region, kernels::KvDevice& device,
                                 ThreadPool& pool, WorkerCounters& counters)
    : options_(options),
      layers_(plan::LayersOf(options.config, options.node)),
      layout_(plan::WindowShapeOf(options.config)),
      transport_(transport),
      region_(region),
      device_(device),
      counters_(counters),
      waits_(options.device_waits ? device.waits() : nullptr),
      lanes_(options.config.lanes),
      tables_({.node = options.node,
               .slots = device.slots(),
               .span_tokens = options.config.span_tokens,
               .holds_all = plan::IsSpread(options.config)}),
      attention_(layers_, options.config.span_tokens, device, pool, counters) {
  for (uint32_t shard = 0; shard < plan::ShardsMax(options.config.stages); ++shard) {
    schedules_.push_back(plan::ScheduleOf(options.config, shard));
  }
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane].parts = MakeParts(lane);
  }
  for (uint32_t node = 0; node < options.config.compute_nodes.size(); ++node) {
    for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
      part_of_.push_back(FindPart(node, lane));
    }
  }
  attention_.Reserve(options.config.rows_max,
                     options.config.rows_max * std::max(1u, layout_.shape().spans_max));
  for (const std::string& name : options.config.compute_nodes) {
    links_.push_back(counters.meter.Link(name));
  }
  conditions_.resize(layout_.query_words());
}

std::vector<Part> AttentionWorker::MakeParts(uint32_t lane) const {
  const plan::EpochConfig& config = options_.config;
  const AttentionDescriptor& any = config.layers.front();
  std::vector<Part> parts;
  for (uint32_t node = 0; node < config.compute_nodes.size(); ++node) {
    const uint32_t shard = plan::StageOf(config, node).shard.index;
    const HeadRange brought = plan::HeadsBetween(config, any, options_.node, node);
    const bool known = std::any_of(parts.begin(), parts.end(),
                                   [&](const Part& part) { return part.shard == shard; });
    if (known || brought.count == 0 || !schedules_.front().Runs(node, lane)) {
      continue;
    }
    const uint32_t held = plan::HeadsOf(config, any, options_.node).first;
    parts.push_back(
        {.shard = shard, .heads = {.first = brought.first - held, .count = brought.count}});
    parts.back().reply.resize(layout_.reply_window_bytes());
  }
  return parts;
}

uint32_t AttentionWorker::FindPart(uint32_t compute_node, uint32_t lane) const {
  const uint32_t shard = plan::StageOf(options_.config, compute_node).shard.index;
  const std::vector<Part>& parts = lanes_[lane].parts;
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [&](const Part& part) { return part.shard == shard; });
  return found == parts.end() || !schedules_.front().Runs(compute_node, lane)
             ? kNoPart
             : static_cast<uint32_t>(found - parts.begin());
}

Part* AttentionWorker::PartFor(uint32_t compute_node, uint32_t lane) {
  const uint32_t part = part_of_[size_t{compute_node} * lanes_.size() + lane];
  return part == kNoPart ? nullptr : &lanes_[lane].parts[part];
}

kernels::KvDeviceOptions AttentionWorker::DeviceOptions(const plan::EpochConfig& config,
                                                        std::vector<AttentionDescriptor> layers,
                                                        uint32_t slots) {
  const uint32_t blocks =
      (config.sequence_tokens_max + kernels::kBlockTokens - 1) / kernels::kBlockTokens;
  // A row's spans, or its full blocks as aligned spans and the rest.
  const uint32_t items_of_row = std::max(plan::WindowShapeOf(config).spans_max,
                                         static_cast<uint32_t>(std::bit_width(blocks)) + 1);
  return {.layers = std::move(layers),
          .arithmetic = config.attention.decode,
          .slots = slots,
          .context_tokens_max = config.sequence_tokens_max,
          .items_max = config.rows_max * items_of_row,
          .store_tokens_max = config.rows_max + config.chunk_tokens_max};
}

// A transport may read the source of a put until the view of its target is gone.
AttentionWorker::~AttentionWorker() { replies_.clear(); }

void AttentionWorker::SetPeers(std::vector<std::unique_ptr<transport::RemoteRegion>> replies) {
  replies_ = std::move(replies);
}

void AttentionWorker::PushPlan(plan::StepPlan plan) { inbox_.Push(std::move(plan)); }

void AttentionWorker::Stop() {
  abort_.store(1, std::memory_order_release);
  if (waits_ != nullptr) {
    waits_->Abort();  // Later than abort_: whoever opens them anew looks at it afterwards.
  }
  inbox_.Wake();
}

Nanos AttentionWorker::Lap(telemetry::WorkPart part, uint32_t lane, uint64_t value,
                           uint32_t replica, size_t bytes) {
  const Nanos start = lap_;
  lap_ = counters_.meter.Lap({.start = start,
                              .part = part,
                              .lane = static_cast<uint8_t>(lane),
                              .peer = static_cast<uint8_t>(replica),
                              .layer = static_cast<uint16_t>(layout_.LayerOf(value)),
                              .rows = static_cast<uint16_t>(lanes_[lane].rows.size()),
                              .step = static_cast<uint32_t>(layout_.StepOf(value)),
                              .bytes = static_cast<uint32_t>(std::min<size_t>(bytes, UINT32_MAX))});
  return lap_ - start;
}

absl::Status AttentionWorker::Run() {
  LAMINA_RETURN_IF_ERROR(device_.Begin());
  OpenWaits();
  const absl::Status served = Serve();
  if (waits_open_) {
    waits_->Close();  // The windows outlive what the device does with them.
  }
  return served;
}

absl::Status AttentionWorker::Serve() {
  for (const Lane& lane : lanes_) {
    for (const Part& part : lane.parts) {
      LAMINA_RETURN_IF_ERROR(control::TransportFault(
          transport_.RegisterSource(part.reply, transport::MemoryKind::kHost)));
    }
  }
  if (!device_replies_.empty()) {
    LAMINA_RETURN_IF_ERROR(control::TransportFault(
        transport_.RegisterSource(device_replies_, transport::MemoryKind::kDevice)));
  }
  if (absl::Status answered = AnswerLinks(); !answered.ok()) {
    return absl::IsCancelled(answered) ? absl::OkStatus() : control::TransportFault(answered);
  }
  lap_ = RealClock().Now();
  while (abort_.load(std::memory_order_acquire) == 0) {
    counters_.beat.Raise();
    if (const absl::Status looked = LookAtDevice(); !looked.ok()) {
      return absl::IsCancelled(looked) ? absl::OkStatus() : looked;
    }
    const absl::StatusOr<size_t> ready = WaitForQueries();
    if (!ready.ok()) {
      if (absl::IsDeadlineExceeded(ready.status())) {
        if (!waits_open_ || RealClock().Now() - lap_ >= kIdleWait) {
          counters_.beat.Begin(ThreadActivity::kIdle);
          lap_ = counters_.meter.Lap({.start = lap_, .part = telemetry::WorkPart::kWaitQuery});
        }
        LAMINA_RETURN_IF_ERROR(TakePlans());
        continue;
      }
      return absl::IsCancelled(ready.status()) ? absl::OkStatus() : ready.status();
    }
    counters_.beat.Begin(ThreadActivity::kWorking);
    const uint32_t replica = static_cast<uint32_t>(*ready / options_.config.lanes);
    const uint32_t lane = static_cast<uint32_t>(*ready % options_.config.lanes);
    if (lanes_[lane].on_device) {
      continue;  // The next step's first query: the device is about to be seen to be done.
    }
    const Part* part = PartFor(replica, lane);
    const Nanos waited =
        Lap(telemetry::WorkPart::kWaitQuery, lane, part == nullptr ? 1 : part->value + 1, replica);
    telemetry::AddTo(links_[replica]->waited_nanos, static_cast<uint64_t>(waited));
    const absl::Status status = ServeUnit(replica, lane);
    if (absl::IsCancelled(status)) {
      return absl::OkStatus();
    }
    if (!status.ok()) {
      return control::Blame(status, options_.config.compute_nodes[replica]);
    }
  }
  return absl::OkStatus();
}

// Attentions without chunks, of the middle of a step: its first may have waited for the plan, its
// last applies the next one.
void AttentionWorker::NoteUnit(const Lane& lane, const Part& part) {
  if (lane.rows.empty() || lane.chunk_tokens > 0 || layout_.LayerOf(part.value) == 0 ||
      layout_.LayerOf(part.value) + 1 == layout_.layer_count()) {
    return;
  }
  uint64_t context = 0;
  for (const Row& row : lane.rows) {
    context += row.position + 1;
  }
  unit_times_.Add(static_cast<double>(context), ToSeconds(part.unit_nanos));
  counters_.unit_line.Set(unit_times_.Line(/*proportional=*/true));
}

// Compute nodes measure their links before they send anything else.
absl::Status AttentionWorker::AnswerLinks() {
  std::vector<transport::LinkAnswerer> answerers;
  for (uint32_t node = 0; node < replies_.size(); ++node) {
    answerers.push_back({.peer = replies_[node].get(),
                         .ask_word = layout_.query_probe_word(node),
                         .answer_word = layout_.memory_probe_word(options_.node)});
  }
  size_t late = 0;
  const absl::Status status = transport::AnswerLinks(
      transport_, region_, answerers,
      {.deadline = RealClock().Now() + kMeasuringMax, .abort = &abort_, .beat = &counters_.beat},
      late);
  if (!status.ok()) {
    const std::string& name = options_.config.compute_nodes[late];
    return control::Blame(
        absl::Status(status.code(), absl::StrCat("link to ", name, ": ", status.message())), name);
  }
  return absl::OkStatus();
}

// Waits for the next value of any (compute node, lane). The one served last is looked at last. No
// shard is in the next step before all windows of this one have been answered: they meet at its
// end.
absl::StatusOr<size_t> AttentionWorker::WaitForQueries() {
  const size_t count = conditions_.size();
  for (size_t i = 0; i < count; ++i) {
    const size_t which = (first_condition_ + i) % count;
    const auto lane = static_cast<uint32_t>(which % options_.config.lanes);
    const Part* part = PartFor(static_cast<uint32_t>(which / options_.config.lanes), lane);
    conditions_[i] = {.word = static_cast<uint32_t>(which),
                      .at_least = part == nullptr ? 1 : part->value + 1};
    if (lanes_[lane].on_device) {
      conditions_[i].at_least =
          layout_.SignalValue(lanes_[lane].step, layout_.layer_count() - 1) + 1;
    }
  }
  const Nanos pause = waits_open_ ? NextLook() : kIdleWait;
  LAMINA_ASSIGN_OR_RETURN(
      const size_t index,
      transport_.Wait(region_, conditions_,
                      {.deadline = RealClock().Now() + pause, .abort = &abort_}));
  const size_t which = (first_condition_ + index) % count;
  first_condition_ = (which + 1) % count;
  return which;
}

// A raised signal over a header of the past means that somebody wrote who should not have: the rows
// cannot be trusted, nor the signal. So a stale window ends the epoch as any other wrong one does.
absl::Status AttentionWorker::CheckWindow(const plan::WindowHeader& header,
                                          const plan::WindowHeader& expected) {
  absl::Status checked = plan::CheckHeader(header, expected);
  if (!checked.ok()) {
    counters_.refusals.Count(telemetry::RefusalOf(header, expected));
    LogWarning("refused a query window of ", options_.config.compute_nodes[expected.sender], " ",
               checked.message());
  }
  return checked;
}

// Takes what has come, in the order of its coming: a sequence may leave one lane and join another.
absl::Status AttentionWorker::TakePlans() {
  taken_.clear();
  inbox_.TakeAll(taken_);
  for (plan::StepPlan& plan : taken_) {
    if (plan.epoch == options_.config.epoch && plan.lane < lanes_.size()) {
      Lane& lane = lanes_[plan.lane];
      lane.plans.push_back(std::move(plan));
      LAMINA_RETURN_IF_ERROR(Advance(lane));
    }
  }
  return absl::OkStatus();
}

// Applies plans of a lane whose step is done, up to the next one that has rows here.
absl::Status AttentionWorker::Advance(Lane& lane) {
  size_t applied = 0;
  while (lane.step == 0 && applied < lane.plans.size()) {
    const plan::StepPlan& plan = lane.plans[applied++];
    LAMINA_RETURN_IF_ERROR(tables_.Apply(plan));
    LAMINA_RETURN_IF_ERROR(CollectRows(options_.config, tables_, plan, lane));
    if (!lane.rows.empty() || lane.chunk_tokens > 0) {
      lane.step = plan.step;
      for (Part& part : lane.parts) {
        part.done = false;
      }
      lane.pinned = !plan.chunks.empty();
      lane.chunking = plan.chunking;
      if (lane.chunking.query_first && options_.config.partition != Partition::kTokenRange) {
        LAMINA_ASSIGN_OR_RETURN(const size_t spans, CutAtFullBlocks(tables_, lane));
        attention_.ReserveCuts(lane, spans);
      }
      LAMINA_RETURN_IF_ERROR(GiveToDevice(lane));
    }
  }
  lane.plans.erase(lane.plans.begin(), lane.plans.begin() + static_cast<std::ptrdiff_t>(applied));
  return absl::OkStatus();
}

// Waits until the lane is in a step: shared memory outruns gRPC, so a window may come before its
// plan.
absl::Status AttentionWorker::AwaitPlan(const Lane& lane) {
  LAMINA_RETURN_IF_ERROR(TakePlans());
  while (lane.step == 0) {
    counters_.beat.Raise();
    inbox_.WaitForItem(ThreadBeat::kNapMost);
    if (abort_.load(std::memory_order_acquire) != 0) {
      return absl::CancelledError("stopped while waiting for a plan");
    }
    LAMINA_RETURN_IF_ERROR(TakePlans());
  }
  return absl::OkStatus();
}

}  // namespace lamina::memory_node
